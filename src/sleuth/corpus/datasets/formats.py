"""The rows of other projects as questions: which project's a row is shows in its columns."""

import re
from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import Any

from sleuth.corpus.datasets import fields
from sleuth.records import Question

PREFIX = "searchR1_"  # verl's, before the name of a set
ASKED = "Question:"  # what stands before the question in the prompts of Search-R1 and verl
COUNTED = re.compile(r"(?:(?:train|dev|test|val|validation)_)?\d+")  # an id that counts the rows of one file
CHATML = re.compile(r"<\|im_start\|>(\w++)\n([^<]*+(?:<(?!\|im_(?:start|end)\|>)[^<]*+)*+)<\|im_end\|>")

Row = dict[str, Any]
Reading = Callable[[Row, str], Question]


def ours(row: Row, source: str) -> Question:
    """A row of Sleuth or FlashRAG; one that does not name its set has that of its file."""
    named = "data_source" in row
    return Question(
        id=fields.text(row, "id") if named else _scoped(fields.text(row, "id"), source),
        question=fields.text(row, "question"),
        golden_answers=fields.answers(fields.texts(row, "golden_answers"), row, "golden_answers"),
        data_source=fields.text(row, "data_source") if named else source,
        supporting_ids=fields.texts(row, "supporting_ids"),
        type=fields.optional(row, "type", str) or _kind(row),
        hops=fields.optional(row, "hops", int),
        answerable=fields.optional(row, "answerable", bool),
        prompt=fields.prompt(row),
    )


def search_r1(row: Row, source: str) -> Question:
    """A row of Search-R1 or verl; the set's name without verl's prefix."""
    source = fields.text({"data_source": source, **row}, "data_source").removeprefix(PREFIX)
    prompt = fields.prompt(row)
    extra = _object(row, "extra_info")
    asked = _asked(row, extra, prompt[-1]["content"] if prompt else "")
    return Question(_id(row, extra, asked, source), asked, _targets(row), source, prompt=prompt)


def asearcher(row: Row, source: str) -> Question:
    """A row of ASearcher: its other ways to write the answer are right too."""
    source = fields.text({"source": source, **row}, "source")
    given = tuple(dict.fromkeys((*fields.one_or_more(row, "answer"), *fields.one_or_more(row, "aug_answer"))))
    asked = fields.text(row, "question")
    return Question(_id(row, {}, asked, source), asked, fields.answers(given, row, "answer"), source)


def rlinf(row: Row, source: str) -> Question:
    """A row of RLinf: the prompt is one text, in which a chat template may have been filled in already."""
    source = fields.text({"data_source": source, **row}, "data_source").removeprefix(PREFIX)
    name = "solutions" if "solutions" in row else "answer"
    prompt = fields.prompt({"prompt": _messages(row["prompt"])})
    asked = _asked(row, {}, prompt[-1]["content"] if prompt else "")
    golden = fields.answers(fields.one_or_more(row, name), row, name)
    return Question(_id(row, {}, asked, source), asked, golden, source, prompt=prompt)


# The first whose columns a row has all of; what has none of them is read as ours, which says what is missing.
FORMATS: tuple[tuple[frozenset[str], Reading], ...] = (
    (frozenset({"reward_model", "prompt"}), search_r1),
    (frozenset({"question", "golden_answers"}), ours),
    (frozenset({"question", "answer"}), asearcher),
    (frozenset({"prompt", "solutions"}), rlinf),
    (frozenset({"prompt", "answer"}), rlinf),
)


def recognised(columns: Collection[str]) -> Reading | None:
    """How rows with these columns are read; None where no format has them."""
    return next((reading for needed, reading in FORMATS if needed <= set(columns)), None)


def _scoped(name: str, source: str) -> str:
    """An id that only counts rows begins anew in the next file: the set's name goes before it."""
    return f"{source}_{name}" if COUNTED.fullmatch(name) else name


def _id(row: Row, extra: Row, asked: str, source: str) -> str:
    """The row's own id; else split and index, which mean something together with the set only; else a digest."""
    given = next((row[name] for name in ("id", "qid") if row.get(name) not in (None, "")), None)
    if given is not None:
        return _scoped(str(given), source)
    if extra.get("index") is not None and extra.get("split"):
        return f"{source}_{extra['split']}_{extra['index']}"
    return f"{source}_{blake2b(asked.encode(), digest_size=6).hexdigest()}"


def _asked(row: Row, extra: Row, spoken: str) -> str:
    """The question, which some files hold in the prompt only: what stands there after the last "Question:"."""
    for place in (row, extra):
        if place.get("question"):
            return fields.text(place, "question")
    _, found, asked = spoken.rpartition(ASKED)
    if not found:
        raise ValueError(f'there is no question: no column of that name, and no "{ASKED}" in the prompt')
    return fields.text({"question": asked.strip()}, "question")


def _targets(row: Row) -> tuple[str, ...]:
    truth = _object(row, "reward_model").get("ground_truth")
    if isinstance(truth, dict):
        return fields.answers(fields.one_or_more(truth, "target"), truth, "target")
    if truth is None:
        return fields.answers(fields.texts(row, "golden_answers"), row, "golden_answers")
    return fields.answers(fields.one_or_more({"ground_truth": truth}, "ground_truth"), row, "reward_model")


def _messages(spoken: Any) -> Any:
    """A prompt in one text as messages: those of the ChatML in it, or one of the user."""
    if not isinstance(spoken, str) or not spoken.strip():
        return spoken
    turns = [{"role": role, "content": content} for role, content in CHATML.findall(spoken)]
    return turns or [{"role": "user", "content": spoken}]


def _kind(row: Row) -> str | None:
    """FlashRAG keeps the kind of a question in its metadata."""
    kind = _object(row, "metadata").get("type")
    return kind if isinstance(kind, str) else None


def _object(row: Row, name: str) -> Row:
    value = row.get(name)
    return value if isinstance(value, dict) else {}
