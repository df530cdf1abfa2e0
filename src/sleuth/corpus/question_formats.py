"""Question formats of other projects, recognised by their columns, and storage of original rows for write-back."""

import math
import re
from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import Any, TypeVar

from sleuth.records import Question

VERL_PREFIX = "searchR1_"  # prefix of the name of a set
PROMPT_MARK = "Question:"  # precedes the question in the prompts of Search-R1 and verl
ROW_NUMBER = re.compile(r"(?:(?:train|dev|test|val|validation)_)?\d+")  # an id that is only a row number
CHATML = re.compile(r"<\|im_start\|>(\w++)\n([^<]*+(?:<(?!\|im_(?:start|end)\|>)[^<]*+)*+)<\|im_end\|>")

Row = dict[str, Any]
Reader = Callable[[Row, str], Question]  # called with a row and the set it belongs to unless it names one
Value = TypeVar("Value")


def read_sleuth(row: Row, source: str) -> Question:
    """Read a row in the format of Sleuth or FlashRAG."""
    named = "data_source" in row
    kind = _object(row, "metadata").get("type")  # in FlashRAG's files
    return Question(
        id=_text(row, "id") if named else _qualified_id(_text(row, "id"), source),
        question=_text(row, "question"),
        golden_answers=_sleuth_answers(row),
        data_source=_text(row, "data_source") if named else source,
        supporting_ids=_texts(row, "supporting_ids"),
        type=_optional(row, "type", str) or (kind if isinstance(kind, str) else None),
        hops=_optional(row, "hops", int),
        answerable=_optional(row, "answerable", bool),
        prompt=_prompt(row),
    )


def read_search_r1(row: Row, source: str) -> Question:
    """Read a row in the format of Search-R1 or verl."""
    source = _text({"data_source": source, **row}, "data_source").removeprefix(VERL_PREFIX)
    prompt = _prompt(row)
    extra = _object(row, "extra_info")
    question = _question(row, extra, prompt[-1]["content"] if prompt else "")
    truth = _object(row, "reward_model").get("ground_truth")
    if isinstance(truth, dict):
        answers = _answers(_text_or_texts(truth, "target"), truth, "target")
    elif truth is None:
        answers = _answers(_texts(row, "golden_answers"), row, "golden_answers")
    else:
        answers = _answers(_text_or_texts({"ground_truth": truth}, "ground_truth"), row, "reward_model")
    return Question(_id(row, extra, question, source), question, answers, source, prompt=prompt)


def read_asearcher(row: Row, source: str) -> Question:
    """Read a row in ASearcher's format, which lists alternative answers."""
    source = _text({"source": source, **row}, "source")
    answers = tuple(dict.fromkeys((*_text_or_texts(row, "answer"), *_text_or_texts(row, "aug_answer"))))
    question = _text(row, "question")
    return Question(_id(row, {}, question, source), question, _answers(answers, row, "answer"), source)


def read_rlinf(row: Row, source: str) -> Question:
    """Read a row in RLinf's format: the prompt is a string, perhaps with the chat template already applied."""
    source = _text({"data_source": source, **row}, "data_source").removeprefix(VERL_PREFIX)
    name = "solutions" if "solutions" in row else "answer"
    text = row["prompt"]
    if isinstance(text, str) and text.strip():
        turns = [{"role": role, "content": content} for role, content in CHATML.findall(text)]
        text = turns or [{"role": "user", "content": text}]
    prompt = _prompt({"prompt": text})
    question = _question(row, {}, prompt[-1]["content"] if prompt else "")
    answers = _answers(_text_or_texts(row, name), row, name)
    return Question(_id(row, {}, question, source), question, answers, source, prompt=prompt)


# The first format whose columns are all present applies.
FORMATS: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"reward_model", "prompt"}), read_search_r1),
    (frozenset({"question", "golden_answers"}), read_sleuth),
    (frozenset({"question", "answer"}), read_asearcher),
    (frozenset({"prompt", "solutions"}), read_rlinf),
    (frozenset({"prompt", "answer"}), read_rlinf),
)


def find_reader(columns: Collection[str]) -> Reader | None:
    """Return the reader for rows with these columns; None if the format is unknown."""
    return next((reader for needed, reader in FORMATS if needed <= set(columns)), None)


def _qualified_id(name: str, source: str) -> str:
    """Prefix an id with the name of its set if the id is only a row number, which repeats across files."""
    return f"{source}_{name}" if ROW_NUMBER.fullmatch(name) else name


def _id(row: Row, extra: Row, question: str, source: str) -> str:
    """Return the id of a row, else an id made from set, split and index, else a digest of the question."""
    given = next((row[name] for name in ("id", "qid") if row.get(name) not in (None, "")), None)
    if given is not None:
        return _qualified_id(str(given), source)
    if extra.get("index") is not None and extra.get("split"):
        return f"{source}_{extra['split']}_{extra['index']}"
    return f"{source}_{blake2b(question.encode(), digest_size=6).hexdigest()}"


def _question(row: Row, extra: Row, prompt: str) -> str:
    """Return the question of a row, from its column or else from the prompt after the last "Question:"."""
    for place in (row, extra):
        if place.get("question"):
            return _text(place, "question")
    _, found, question = prompt.rpartition(PROMPT_MARK)
    if not found:
        raise ValueError(f'no question found: there is no question column, and no "{PROMPT_MARK}" in the prompt')
    return _text({"question": question.strip()}, "question")


def _object(row: Row, name: str) -> Row:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a string, but is {repr(value) if name in row else 'missing'}")
    return value


def _texts(row: Row, name: str) -> tuple[str, ...]:
    value = row.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of strings, but is {value!r}")
    return tuple(value)


def _text_or_texts(row: Row, name: str) -> tuple[str, ...]:
    value = row.get(name)
    return (value,) if isinstance(value, str) else _texts(row, name)


def _sleuth_answers(row: Row) -> tuple[str, ...]:
    """Return the answers of a row in Sleuth's format; a question marked as unanswerable needs none."""
    given = _texts(row, "golden_answers")
    if row.get("answerable") is False:
        return tuple(answer for answer in given if answer.strip())
    return _answers(given, row, "golden_answers")


def _answers(given: tuple[str, ...], row: Row, name: str) -> tuple[str, ...]:
    """Return the non-blank answers; raise ValueError if there are none."""
    known = tuple(answer for answer in given if answer.strip())
    if not known:
        found = repr(row[name]) if name in row else "missing"
        raise ValueError(f"the question has no answer: {name} is {found}, expected at least one")
    return known


def _optional(row: Row, name: str, kind: type[Value]) -> Value | None:
    value = row.get(name)
    if value is not None and type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}, but is {value!r}")
    return value


def _prompt(row: Row) -> tuple[dict[str, str], ...] | None:
    """Return the messages of a row without null entries; None if it has no prompt."""
    given = row.get("prompt")
    if given is None:
        return None
    if not isinstance(given, list) or not given or not all(map(_is_message, given)):
        raise ValueError(f"prompt must be a list of messages with role and content, but is {given!r}")
    return tuple({key: value for key, value in message.items() if value is not None} for message in given)


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {"role", "content"} <= set(value)
        and all(
            isinstance(each, str) or (each is None and key not in ("role", "content")) for key, each in value.items()
        )
    )


# A kept row refers to the fields of its question as {"$": "prompt"} and so on, so that each is stored and edited once.
# Non-finite numbers are {"$": "NaN"}, {"$": "Infinity"} and {"$": "-Infinity"}; an object of the row that looks like
# one of these has its value wrapped in a list.
MARK = "$"
NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def fold_row(row: Row, question: Question) -> Row:
    """Return the row to store, with the fields of its question replaced by references."""
    fields = [(value, {MARK: name}) for name, value in _question_fields(question).items() if value is not None]

    def fold(value: Any) -> Any:
        if isinstance(value, str | list):
            return next((mark for field, mark in fields if field == value), value)
        if isinstance(value, dict) and value.keys() == {MARK}:
            return {MARK: [_convert(value[MARK], fold)]}
        return _mark_number(value)

    return {key: _convert(value, fold) for key, value in row.items()}


def unfold_row(row: Row, question: Question) -> Row:
    """Return the original row, with the current fields of the question."""
    fields = {**NUMBERS, **_question_fields(question)}

    def unfold(value: Any) -> Any:
        match value:
            case {"$": str(name)} if len(value) == 1 and name in fields:
                return fields[name]
            case {"$": [inner]} if len(value) == 1:
                return {MARK: _convert(inner, unfold)}
        return value

    return {key: _convert(value, unfold) for key, value in row.items()}


def mark_numbers(value: Any) -> Any:
    """Replace NaN and infinities with markers, at any depth."""
    return _convert(value, _mark_number)


def _mark_number(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return {MARK: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _convert(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply `convert` to a value or, if that changes nothing, to the values inside; tuples become lists."""
    converted = convert(value)
    if converted is not value:
        return converted
    if isinstance(value, dict):
        return {key: _convert(inner, convert) for key, inner in value.items()}
    if isinstance(value, list | tuple):  # entries of a map are tuples
        return [_convert(inner, convert) for inner in value]
    return value


def _question_fields(question: Question) -> Row:
    return {
        "prompt": None if question.prompt is None else [dict(message) for message in question.prompt],
        "question": question.question,
        "golden_answers": list(question.golden_answers),
    }
