"""Parquet files by pyarrow: rows as plain values, and schemas that can be kept as text."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
from pyarrow import parquet

from sleuth.errors import InputError

BATCH = 1024
BUFFER = 1 << 20
GROUP = 10_000  # rows written at a time

Schema: TypeAlias = Any  # pyarrow.Schema, which carries no types of its own


def schema(path: Path) -> Schema:
    """The columns of a file with their types; a file that is no Parquet is an InputError."""
    try:
        return parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def count(path: Path) -> int:
    """How many rows a file has."""
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file in order, read a batch at a time."""
    try:
        # Without a buffer of its own it would hold whole columns of a row group.
        with parquet.ParquetFile(path, buffer_size=BUFFER) as table:
            for batch in table.iter_batches(BATCH, columns=columns):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def slim(columns: Schema) -> list[str]:
    """The names of the columns that are neither vectors nor raw bytes."""
    return [field.name for field in columns if not _is_bulk(field.type)]


def write(path: Path, content: Iterable[Mapping[str, Any]], columns: Schema) -> int:
    """Writes rows under a schema and returns how many; one that does not fit is a ValueError that says how.

    The entries of a map may be lists of two, as JSON has them.
    """
    mapped = [field for field in columns if _holds_map(field.type)]
    waiting, written = (_with_maps(row, mapped) for row in content), 0
    try:
        with parquet.ParquetWriter(path, columns) as file:
            while group := list(islice(waiting, GROUP)):
                file.write_table(pyarrow.Table.from_pylist(group, schema=columns))
                written += len(group)
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    return written


def inferred(content: Sequence[Mapping[str, Any]]) -> Schema:
    """The schema that rows have by themselves, columns in the order they are met; types that clash are a ValueError."""
    names = dict.fromkeys(name for row in content for name in row)
    try:
        return pyarrow.table({name: [row.get(name) for row in content] for name in names}).schema
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def packed(columns: Schema) -> str:
    """A schema as text, nested types and metadata included."""
    return base64.b64encode(columns.serialize()).decode("ascii")


def unpacked(text: str) -> Schema:
    """The schema that `packed` wrote; any other text is a ValueError."""
    try:
        return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(text, validate=True)))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"no schema: {' '.join(str(error).split())}") from error


def columns(**kinds: object) -> Schema:
    """A schema in Python's words: `str`, `int`, `[kind]` a list, `{name: kind}` a struct."""
    return pyarrow.schema([(name, _kind(kind)) for name, kind in kinds.items()])


def _kind(kind: object) -> Any:
    match kind:
        case dict():
            return pyarrow.struct([(name, _kind(inner)) for name, inner in kind.items()])
        case [inner]:
            return pyarrow.list_(_kind(inner))
        case _:
            return pyarrow.string() if kind is str else pyarrow.int64()


def _with_maps(row: Mapping[str, Any], mapped: Sequence[Any]) -> Mapping[str, Any]:
    return {**row, **{field.name: _entries(row.get(field.name), field.type) for field in mapped}} if mapped else row


def _entries(value: Any, kind: Any) -> Any:
    """A value with tuples where its type has maps; what is of another type is left for pyarrow to refuse."""
    types = pyarrow.types
    if types.is_map(kind) and isinstance(value, list):
        inner = pyarrow.struct([("key", kind.key_type), ("value", kind.item_type)])
        return [_entry(each, inner) for each in value]
    if _is_list(kind) and isinstance(value, list):
        return [_entries(each, kind.value_type) for each in value]
    if types.is_struct(kind) and isinstance(value, dict):
        return {field.name: _entries(value.get(field.name), field.type) for field in kind}
    return value


def _entry(pair: Any, inner: Any) -> Any:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return pair
    return tuple(_entries(each, field.type) for each, field in zip(pair, inner, strict=True))


def _holds_map(kind: Any) -> bool:
    types = pyarrow.types
    if types.is_struct(kind):
        return any(_holds_map(field.type) for field in kind)
    return bool(types.is_map(kind)) or (_is_list(kind) and _holds_map(kind.value_type))


def _is_list(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bulk(kind: Any) -> bool:
    types = pyarrow.types
    if _is_list(kind):
        return bool(types.is_floating(kind.value_type)) or _is_bulk(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read ({' '.join(str(error).split())}); give a whole Parquet file")
