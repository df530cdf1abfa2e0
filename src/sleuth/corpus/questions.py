"""Question files: one JSON object a line, in the format of version 1; keys it does not know are ignored."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeVar

from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.runs import replacing

Value = TypeVar("Value")

EXPECTED = '{"id": "q1", "question": "Who ...?", "golden_answers": ["..."]}'


def stream(path: Path) -> Iterator[Question]:
    """The questions of a file, plain or .gz, in order; the first bad line is an InputError."""
    source = path.name.partition(".")[0]
    seen: set[str] = set()
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            question = _question(parsed(line), source)
            if question.id in seen:
                raise ValueError(f"the id {question.id!r} stands on an earlier line too; ids must differ")
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}; a line looks like {EXPECTED}") from error
        seen.add(question.id)
        yield question


def load(path: Path) -> list[Question]:
    """All questions of a file; there must be one at least."""
    questions = list(stream(path))
    if not questions:
        raise InputError(f"{path} holds no questions; expected one JSON object a line, like {EXPECTED}")
    return questions


def write(path: Path, questions: Iterable[Question]) -> int:
    """Writes a question file, whole or not at all, compressed where its name ends in .gz; returns how many."""
    count = 0
    with replacing(path) as temporary, _opened(temporary, "w") as file:
        for question in questions:
            if not any(answer.strip() for answer in question.golden_answers):
                raise InputError(f"the question {question.id!r} has no answer; give it one golden answer at least")
            file.write(line(question))
            count += 1
    return count


def line(question: Question) -> str:
    """A question as a line of its file; what is not known of it is left out."""
    known = {name: value for name, value in asdict(question).items() if value is not None and value != ()}
    return json.dumps(known, ensure_ascii=False) + "\n"


def _opened(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; one that cannot be read is an InputError."""
    try:
        with _opened(path, "r") as file:
            yield from file
    except FileNotFoundError:
        raise InputError(f"the question file {path} does not exist; give a JSONL file of questions") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"the question file {path} cannot be read ({error}); give JSONL in UTF-8") from error


def parsed(text: str) -> dict[str, Any]:
    """The JSON object of a line; what is none is a ValueError that shows how it begins."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {text.strip()[:60]!r}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, not {text.strip()[:60]!r}")
    return row


def _question(row: dict[str, Any], source: str) -> Question:
    """Checks a row; a file without data_source is its own source."""
    return Question(
        id=_text(row, "id"),
        question=_text(row, "question"),
        golden_answers=_answers(row),
        data_source=_text({"data_source": source, **row}, "data_source"),
        supporting_ids=_texts(row, "supporting_ids"),
        type=_optional(row, "type", str),
        hops=_optional(row, "hops", int),
        answerable=_optional(row, "answerable", bool),
        prompt=_prompt(row),
    )


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        found = f"it is {value!r}" if name in row else "it is missing"
        raise ValueError(f"{name} must be a text, and {found}")
    return value


def _texts(row: dict[str, Any], name: str) -> tuple[str, ...]:
    value = row.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of texts, and it is {value!r}")
    return tuple(value)


def _answers(row: dict[str, Any]) -> tuple[str, ...]:
    """Blank answers are dropped: they would make an empty answer right."""
    answers = tuple(answer for answer in _texts(row, "golden_answers") if answer.strip())
    if not answers:
        found = (
            f"golden_answers is {row['golden_answers']!r}" if "golden_answers" in row else "golden_answers is missing"
        )
        raise ValueError(f"a question without answer: {found}, and one answer at least is expected")
    return answers


def _optional(row: dict[str, Any], name: str, kind: type[Value]) -> Value | None:
    value = row.get(name)
    if value is not None and type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}, and it is {value!r}")
    return value


def _prompt(row: dict[str, Any]) -> tuple[dict[str, str], ...] | None:
    prompt = row.get("prompt")
    if prompt is None:
        return None
    if not isinstance(prompt, list) or not prompt or not all(map(_is_message, prompt)):
        raise ValueError(f"prompt must be a list of messages with role and content, and it is {prompt!r}")
    return tuple(prompt)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not {"role", "content"} <= set(value):
        return False
    return all(isinstance(each, str) for each in value.values())
