"""The Hugging Face hub: folders of models by name, from this machine's cache or over the network."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from sleuth.errors import InputError

# owner/model, as on the hub; what begins with a dot, a tilde or a slash is a path.
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WEIGHTS = "model.safetensors"
POLICY = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def named(model: str) -> bool:
    """Whether this is the name of a model on the hub rather than a path: owner/model, where no such path exists."""
    return NAME.fullmatch(model) is not None and not Path(model).exists()


def policy(model: str, otherwise: str) -> Path:
    """The folder of a causal model with its tokenizer, fetched where it is not here; weights are safetensors."""
    folder = cached(model)
    if folder is None or not _whole(folder):
        # Subfolders hold the same weights in other formats.
        folder = fetched(model, POLICY, otherwise, without=["*/*"])
    if not _whole(folder):
        raise InputError(
            f"the model {model!r} is not whole in {folder}: expected config.json, a tokenizer and every file of "
            f"{WEIGHTS}; {otherwise}"
        )
    return folder


def cached(model: str) -> Path | None:
    """The folder of an earlier download, whole or not; so a model once fetched needs no network."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):
        return None


def fetched(model: str, patterns: Sequence[str], otherwise: str, *, without: Sequence[str] = ()) -> Path:
    """The folder of a model with the files that the patterns name; `otherwise` tells what else the user can do."""
    from huggingface_hub import snapshot_download

    # It says on every try what the error says once.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns), ignore_patterns=list(without)))
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"the model {model!r} is no folder here and cannot be fetched from the hub ({reason}); {otherwise}"
        ) from error


def _whole(folder: Path) -> bool:
    """Whether nothing is missing that a policy needs; a download may have been broken off, or of other files."""
    index = folder / f"{WEIGHTS}.index.json"
    weights = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else {WEIGHTS}
    tokenizer = any((folder / name).is_file() for name in VOCABULARIES)
    return tokenizer and all((folder / name).is_file() for name in ("config.json", *weights))
