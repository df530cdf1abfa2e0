"""The command `view`: what it takes, and what it refuses."""

from pathlib import Path

import pytest

from sleuth.cli.view import view
from sleuth.errors import InputError
from sleuth.runs.run import Run


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        (None, "there is no folder runs or evaluations here"),
        ([Path("absent")], "absent is not a folder"),
        ([Path("empty"), Path("file")], "file is not a folder"),
    ],
)
def test_what_is_no_folder_is_an_error_of_one_sentence(
    folders: list[Path] | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=sentence) as error:
        view(folders, port=0, open_page=False)
    assert "\n" not in str(error.value)


def test_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "first", {})
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        view([tmp_path / "runs"], port=0, open_page=False, tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read .*; give another folder"):
        view([tmp_path / "runs"], port=0, open_page=False, tokenizer=tmp_path)


def test_host_that_nobody_knows_is_named(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "first", {})
    with pytest.raises(InputError, match="'no such host'"):
        view([tmp_path / "runs"], host="no such host", open_page=False)
