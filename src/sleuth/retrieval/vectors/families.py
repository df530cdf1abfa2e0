"""How families of encoders want their texts put to them: prefixes, pooling, length of the vectors."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from sleuth.errors import ConfigError
from sleuth.retrieval.settings import EncoderSettings, Pooling
from sleuth.retrieval.vectors.weights import SHIPPED, folder_of, module_names, read

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


def settings_for(
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
    folder = folder_of(model)
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
