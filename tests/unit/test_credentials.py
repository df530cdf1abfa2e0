"""Credentials never reach a file or a message."""

import json
import stat
from pathlib import Path

import pytest

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.credentials import is_redacted, redact, redact_tree
from sleuth.errors import ConfigError
from sleuth.runs.run import Run

SECRET = "http://ada:p@ss@proxy.example:3128"
MASKED = "http://***@proxy.example:3128"
SEARCHED = ["retrieval.index=http://10.0.0.1:8000", f"retrieval.service.proxy={SECRET}"]


def begun_with_a_proxy() -> Config:
    return recipe.compose({"model": {"policy": "quickstart"}, "data": {"train": "a", "test": "b"}}, SEARCHED)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SECRET, MASKED),
        (f"cannot reach {SECRET}/x: refused", f"cannot reach {MASKED}/x: refused"),
        ("https://a.example/?q=1&api_key=abc&token=d#e", "https://a.example/?q=1&api_key=***&token=***#e"),
        ("http://a.example/path?page=2", "http://a.example/path?page=2"),
        ("mail ada@example.com about http://a.example/b@c", "mail ada@example.com about http://a.example/b@c"),
        ("plain ?token=x", "plain ?token=x"),
    ],
)
def test_credentials_are_masked(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact_tree({"a": [text, 1, None]}) == {"a": [shown, 1, None]}
    assert is_redacted(shown) == ("***" in shown)


def test_a_saved_recipe_holds_no_password() -> None:
    tree = recipe.resolved(begun_with_a_proxy())
    assert "p@ss" not in json.dumps(tree)
    assert MASKED in json.dumps(tree)


def test_run_resumes_with_credentials_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begun_with_a_proxy()
    tree = recipe.resolved(begun)
    with pytest.raises(ConfigError, match=r"SLEUTH_RETRIEVAL_SERVICE_PROXY, or .* --set retrieval.service.proxy="):
        recipe.amend(tree, [])
    with pytest.raises(ConfigError, match="without its credentials"):
        recipe.restore(tree)
    with pytest.raises(ConfigError, match=r"retrieval.service.proxy cannot change"):
        recipe.amend(tree, ["retrieval.service.proxy=http://other.example:3128"])
    assert recipe.amend(tree, SEARCHED[1:]) == begun
    monkeypatch.setenv("SLEUTH_RETRIEVAL_SERVICE_PROXY", SECRET)
    assert recipe.amend(tree, []) == recipe.restore(tree) == begun


def test_a_run_folder_is_private(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    run.write_json("manifest.json", run.manifest())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (run.path, *run.path.iterdir())}
    assert modes == {"run": 0o700, "trajectories": 0o700, "checkpoints": 0o700, "manifest.json": 0o600}
