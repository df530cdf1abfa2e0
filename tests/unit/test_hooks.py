"""What a knob may name, and what is said when it names nothing."""

import sys
from pathlib import Path

import pytest

from sleuth.errors import ConfigError
from sleuth.hooks import chosen, imported

TABLE = {"em": str.lower, "f1": str.upper}


def test_a_name_of_the_table_is_its_entry() -> None:
    assert chosen("reward.answer", "f1", TABLE) is str.upper


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"reward\.answer = 'emm' is unknown, expected em, f1 or import:.*'em'"):
        chosen("reward.answer", "emm", TABLE)


def test_an_import_stands_in_for_an_entry() -> None:
    assert chosen("reward.answer", "import:textwrap.dedent", TABLE)(" a") == "a"


def test_a_function_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward_of_a_user.py").write_text("def brevity(question, trajectory):\n    return 0.5\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert imported("import:reward_of_a_user.brevity")(None, None) == 0.5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("textwrap.dedent", "names no function"),
        ("import:dedent", "names no function"),
        ("import:textwrap:dedent", "write it import:textwrap.dedent"),
        ("import:", "names no function"),
        ("import:textwrap.", "names no function"),
        ("import:..dedent", "names no function"),
        ("import:no_such_package.function", "'no_such_package' cannot be imported"),
        ("import:textwrap.dedant", "did you mean 'dedent'"),
        ("import:textwrap.zzz", "'textwrap' has no 'zzz'; expected import:package.function"),
        ("import:math.pi", "is of type float and cannot be called"),
    ],
)
def test_a_name_that_leads_to_no_function_is_refused(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        imported(spec)
