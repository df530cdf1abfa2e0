"""What a knob may name, and what is said when it names nothing."""

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from sleuth.config.hooks import (
    Contract,
    bind,
    call,
    describe_exception,
    import_function,
    register,
    resolve,
    source_hash,
)
from sleuth.errors import ConfigError, FunctionFailed

TABLE = {"em": str.lower, "f1": str.upper}
ONE = Contract(("text",), "text")


def test_a_name_of_the_table_is_its_entry() -> None:
    assert resolve("reward.answer", "f1", TABLE, ONE) is str.upper


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"reward\.answer = 'emm' .*em, f1 or import:.*'em'"):
        resolve("reward.answer", "emm", TABLE, ONE)


def test_an_import_stands_in_for_an_entry() -> None:
    assert resolve("reward.answer", "import:textwrap.dedent", TABLE, ONE)(" a") == "a"


def test_a_function_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward_of_a_user.py").write_text("def brevity(question, trajectory):\n    return 0.5\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert import_function("import:reward_of_a_user.brevity")(None, None) == 0.5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("textwrap.dedent", "not a function path"),
        ("import:dedent", "not a function path"),
        ("import:textwrap:dedent", "write it import:textwrap.dedent"),
        ("import:", "not a function path"),
        ("import:textwrap.", "not a function path"),
        ("import:..dedent", "not a function path"),
        ("import:no_such_package.function", "cannot import the module 'no_such_package'"),
        ("import:textwrap.dedant", "did you mean 'dedent'"),
        ("import:textwrap.zzz", "'textwrap' has no 'zzz'; expected import:package.function"),
        ("import:math.pi", "not callable.*float"),
    ],
)
def test_a_name_that_leads_to_no_function_is_refused(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        import_function(spec)


CODE = """
import functools
async def wait(question, trajectory): pass
def plain(question, trajectory): pass
def alone(question): pass
def more(question, trajectory, third): pass
def named(*, question, trajectory): pass
def spare(question, trajectory, third=3): pass
def every(*anything): pass
class Called:
    def __call__(self, question, trajectory): pass
class Waited:
    async def __call__(self, question, trajectory): pass
called, waited = Called(), Waited()
part = functools.partial(more, third=1)
@functools.wraps(wait)
def wrapped(*arguments): return wait(*arguments)
@functools.wraps(wait)
def finished(*arguments): return 1.0
def fails(question, trajectory):
    return sorted([1, "a"])
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "functions_of_a_user.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return "import:functions_of_a_user"


@pytest.mark.parametrize(
    ("name", "awaited"),
    [
        ("plain", False), ("spare", False), ("every", False), ("called", False), ("part", False), ("finished", False),
        ("wait", True), ("waited", True), ("wrapped", True), ("wait", None), ("plain", None),
    ],
)  # fmt: skip
def test_a_function_that_can_be_called_is_taken(mine: str, name: str, awaited: bool | None) -> None:
    assert callable(import_function(f"{mine}.{name}", Contract(("question", "trajectory"), "a number", awaited)))


@pytest.mark.parametrize(
    ("name", "awaited", "says"),
    [
        ("alone", False, r"takes \(question\) and cannot be called with 2 arguments.*too many.*expected def "
                         r"\(question, trajectory\) that returns a number \(.*functions_of_a_user.py:5\)"),
        ("more", None, "cannot be called with 2 arguments .missing a required argument: 'third'"),
        ("named", False, "cannot be called with 2 arguments"),
        ("wait", False, "is async; expected def "),
        ("waited", False, "is async; expected def "),
        ("plain", True, "is not async; expected async def "),
        ("called", True, "is not async; expected async def "),
    ],
)  # fmt: skip
def test_a_signature_that_does_not_fit_is_refused(mine: str, name: str, awaited: bool | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        import_function(f"{mine}.{name}", Contract(("question", "trajectory"), "a number", awaited))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1\nraise OSError('no disk')", r"raised OSError: no disk \(.*broken_0.py:2\)"),
        ("def f(:\n    pass", r"raised SyntaxError: .*broken_1.py:1"),
        ("import sys\nsys.exit(3)", r"raised SystemExit: 3 \(.*broken_2.py:2\)"),
    ],
)
def test_a_module_that_raises_is_one_sentence(
    code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    name = f"broken_{next(iter(request.node.callspec.indices.values()))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says):
        import_function(f"import:{name}.f")


def test_what_a_function_raises_names_it_and_its_line(mine: str) -> None:
    spec = f"{mine}.fails"
    with pytest.raises(FunctionFailed, match=rf"'{spec}' raised TypeError: .*functions_of_a_user.py:21\)"):
        call(spec, import_function(spec), None, None)


def test_what_our_own_function_raises_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError):
        call("em", lambda: 1 / 0)


def test_an_error_without_words_or_place_is_still_named() -> None:
    assert describe_exception("import:a.b", ValueError()) == "'import:a.b' raised ValueError"


def test_a_long_error_of_many_lines_is_one_sentence() -> None:
    said = describe_exception("import:a.b", RuntimeError("CUDA error\nCompile with\n" + "x" * 10_000))
    assert said.startswith("'import:a.b' raised RuntimeError: CUDA error Compile with xxx")
    assert len(said) < 600


def test_an_importable_function_is_registered_under_its_import_path() -> None:
    assert register(dedent) == "import:textwrap.dedent"


def test_other_functions_get_names_of_this_process() -> None:
    def make(text: str) -> Callable[[str], str]:
        def shout(_: str) -> str:
            return text

        return shout

    first, second = make("a"), make("b")
    names = [register(first), register(second), register(lambda text: text)]
    assert len(set(names)) == 3
    assert register(first) == names[0]
    assert [import_function(name, ONE)("x") for name in names] == ["a", "b", "x"]
    assert source_hash(names[0]) == source_hash(names[1]) is not None
    assert source_hash(names[0]) != source_hash(names[2])


def test_a_function_of_another_process_is_named_until_it_is_given_again() -> None:
    spec = "import:this_process.of_yesterday"
    with pytest.raises(ConfigError, match=f"{spec}.*resume"):
        import_function(spec)
    bind(spec, str.upper)
    assert import_function(spec)("a") == "A"
