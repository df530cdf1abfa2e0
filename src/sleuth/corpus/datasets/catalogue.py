"""Public question sets, corpora and indexes by name: the hub id, and the files in it."""

from dataclasses import dataclass

from sleuth.errors import InputError

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
ASEARCHER = "inclusionAI/ASearcher-Local-Knowledge"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of questions: the file of each part, and the part that Search-R1 measures on."""

    hub: str
    parts: dict[str, str]
    measured: str


@dataclass(frozen=True, slots=True)
class Collection:
    """Files of a hub id, by pattern; `joined` names the file in which pieces are put together."""

    hub: str
    patterns: tuple[str, ...]
    joined: str | None = None


def _flashrag(name: str, *parts: str) -> QuestionSet:
    """Where the answers of the test part are not public, the dev part is measured on."""
    measured = "test" if "test" in parts else "dev"
    return QuestionSet(FLASHRAG, {part: f"{name}/{part}.jsonl" for part in parts}, measured)


SETS: dict[str, QuestionSet] = {
    "nq": _flashrag("nq", "train", "dev", "test"),
    "triviaqa": _flashrag("triviaqa", "train", "dev", "test"),
    "popqa": _flashrag("popqa", "test"),
    "hotpotqa": _flashrag("hotpotqa", "train", "dev"),
    "2wikimultihopqa": _flashrag("2wikimultihopqa", "train", "dev"),
    "musique": _flashrag("musique", "train", "dev"),
    "bamboogle": _flashrag("bamboogle", "test"),
    "searchr1-train": QuestionSet(
        "PeterJinGo/nq_hotpotqa_train", {"train": "train.parquet", "test": "test.parquet"}, "test"
    ),
}

COLLECTIONS: dict[str, Collection] = {
    "wiki18": Collection("PeterJinGo/wiki-18-corpus", ("wiki-18.jsonl.gz",)),
    "wiki18-e5": Collection("PeterJinGo/wiki-18-e5-index", ("part_aa", "part_ab"), "e5_Flat.index"),
    "wiki18-hnsw": Collection("PeterJinGo/wiki-18-e5-index-HNSW64", ("part_*",), "e5_HNSW64.index"),
    "wiki18-bm25": Collection("PeterJinGo/wiki-18-bm25-index", ("*",)),
    "asearcher": Collection(ASEARCHER, ("wiki_corpus.jsonl", "wiki_webpages.jsonl")),
    "asearcher-e5": Collection(ASEARCHER, ("e5.index/e5_Flat.index",)),
    "rlinf": Collection("RLinf/Search-R1-Data", ("*.jsonl",)),
    "flashrag": Collection(
        FLASHRAG, tuple(path for each in SETS.values() if each.hub == FLASHRAG for path in each.parts.values())
    ),
    **{name: Collection(each.hub, tuple(each.parts.values())) for name, each in SETS.items()},
}


def part_of(name: str, split: str) -> str:
    """The part of a set that a split means: `test` is what Search-R1 measures on."""
    known = SETS[name]
    part = known.measured if split == "test" else split
    if part not in known.parts:
        raise InputError(f"{name} has no {split} part; it has {', '.join(known.parts)}: choose one of them by --split")
    return part


def collection(name: str) -> Collection:
    """What `sleuth data download` knows by that name."""
    if name not in COLLECTIONS:
        raise InputError(f"there is nothing to download by the name {name!r}; expected {', '.join(COLLECTIONS)}")
    return COLLECTIONS[name]
