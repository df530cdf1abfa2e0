"""Models by name: from a complete cache without network, otherwise a one-line error."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from sleuth import hub
from sleuth.config import recipe
from sleuth.config.recipe import compose, resolve_policy, with_absolute_paths
from sleuth.errors import InputError

MODEL = "somebody/small-model"
COMPLETE = ("config.json", "tokenizer.json", "model.safetensors")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the network like HF_HUB_OFFLINE=1, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Make the cache folder of the model's newest commit."""
    kept = tmp_path / "cache" / "models--somebody--small-model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("c0ffee")
    folder = kept / "snapshots" / "c0ffee"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("{}")


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-3B", "meta-llama/Llama-3.2-3B-Instruct", MODEL])
def test_owner_and_model_is_a_hub_name(name: str) -> None:
    assert hub.is_hub_name(name)


@pytest.mark.parametrize("path", ["model", "./a/b", "a/b/c", "/a/b", "../b", "~/b", "a/", ""])
def test_other_forms_are_paths(path: str) -> None:
    assert not hub.is_hub_name(path)


def test_existing_folder_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub.is_hub_name(MODEL)
    (tmp_path / MODEL).mkdir(parents=True)
    assert not hub.is_hub_name(MODEL)


def test_complete_cached_model_needs_no_network(snapshot: Path) -> None:
    write(snapshot, *COMPLETE)
    assert resolve_policy(MODEL) == snapshot


def test_all_weight_shards_are_required(snapshot: Path) -> None:
    write(snapshot, "config.json", "tokenizer.json", "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="is incomplete in"):
        resolve_policy(MODEL)
    write(snapshot, "model-2.safetensors")
    assert resolve_policy(MODEL) == snapshot


@pytest.mark.parametrize("missing", COMPLETE)
def test_incomplete_model_is_a_one_line_error(snapshot: Path, missing: str) -> None:
    write(snapshot, *(name for name in COMPLETE if name != missing))
    with pytest.raises(InputError, match=f"'{MODEL}' is incomplete in .*; download it on") as caught:
        resolve_policy(MODEL)
    assert "\n" not in str(caught.value)


def test_missing_model_is_a_one_line_error() -> None:
    with pytest.raises(InputError) as caught:
        resolve_policy(MODEL)
    message = str(caught.value)
    assert message.startswith(f"the model '{MODEL}', which is not a local folder, cannot be downloaded from the Hub (")
    assert f"hf download {MODEL}" in message
    assert message.endswith("or give a local folder")
    assert "\n" not in message


def test_hub_name_is_saved_as_given() -> None:
    tree: recipe.Tree = {"model": {"policy": MODEL}, "algorithm": {"advantage": "gae", "critic": {"policy": MODEL}}}
    config = with_absolute_paths(compose({**tree, "world": {}}))
    assert config.model.policy == MODEL
    assert config.algorithm.critic.policy == MODEL
