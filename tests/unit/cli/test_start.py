"""The command start: bad input, and the plan."""

from pathlib import Path

import pytest

from sleuth.cli.start import start
from sleuth.errors import InputError, UserError


def test_documents_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        start(tmp_path / "missing", "quickstart")


@pytest.mark.parametrize(
    ("files", "options", "complaint"),
    [
        ((), {}, "holds no files"),
        (("a.bin", "b.png"), {}, r"no file of a supported kind \(1 \.bin, 1 \.png\)"),
        (("a.md",), {"model": "nobody-has-this"}, "nobody-has-this"),
        (("a.md",), {"teacher_model": "wise"}, "--teacher-model wise"),
        (("a.md",), {"teacher": "folder", "key_env": "KEY"}, "--key-env KEY"),
        (("a.md",), {"teacher": "nobody-has-this"}, "nobody-has-this"),
        (("a.md",), {"teacher": "http://127.0.0.1:9/v1", "teacher_model": "wise"}, "127.0.0.1:9"),
        (("a.md",), {"until": "lunch"}, "--until 'lunch' .*questions"),
        (("a.md",), {"out": "docs/agent"}, "lies in the folder of documents"),
    ],
)
def test_bad_input_is_refused_before_the_first_stage(
    files: tuple[str, ...], options: dict[str, str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    for name in files:
        Path("docs", name).write_text("# Town\n\nIt lies at the river.\n")
    given = {"model": "quickstart", "out": "agent", **options}
    with pytest.raises(UserError, match=complaint):
        start(Path("docs"), given.pop("model"), Path(given.pop("out")), **given)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Town")
    start(tmp_path / "docs", "quickstart", out=tmp_path / "agent", dry_run=True)
    printed = capsys.readouterr().err
    assert "sleuth data make" in printed
    assert str(tmp_path / "agent" / "run") in printed
    assert not (tmp_path / "agent").exists()
