"""The command `view`: what it takes, and what it says where there is nothing to show."""

from pathlib import Path

import pytest

from sleuth.cli.view import view
from sleuth.errors import InputError
from sleuth.runs import Run


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        (None, "there is no folder runs or evaluations here"),
        ([Path("absent")], "absent is no folder"),
        ([Path("empty")], "no run and no evaluation was found in empty"),
        ([Path("empty"), Path("full/first/checkpoints")], "no run and no evaluation was found in empty, full/first"),
    ],
)
def test_nothing_to_show_is_an_error_of_one_sentence(
    folders: list[Path] | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "full" / "first", {})
    with pytest.raises(InputError, match=sentence) as error:
        view(folders, port=0, open_page=False)
    assert "\n" not in str(error.value)


def test_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "first", {})
    with pytest.raises(InputError, match=r"holds no tokenizer\.json"):
        view([tmp_path / "runs"], port=0, open_page=False, tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read .*; give another folder"):
        view([tmp_path / "runs"], port=0, open_page=False, tokenizer=tmp_path)


def test_host_that_nobody_knows_is_named(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "first", {})
    with pytest.raises(InputError, match="the host 'no such host' is not known"):
        view([tmp_path / "runs"], host="no such host", open_page=False)
