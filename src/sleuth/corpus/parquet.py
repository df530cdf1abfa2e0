"""Parquet files, with pyarrow: rows as plain Python values, and schemas that can be stored as text."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
from pyarrow import parquet

from sleuth.errors import InputError

BATCH = 1024
BUFFER = 1 << 20
GROUP = 10_000  # rows written at a time

Schema: TypeAlias = Any  # pyarrow.Schema, which is untyped

_TEXT, _TEXTS = pyarrow.string(), pyarrow.list_(pyarrow.string())
SEARCH_R1_SCHEMA: Schema = pyarrow.schema(
    {
        "id": _TEXT,
        "question": _TEXT,
        "golden_answers": _TEXTS,
        "data_source": _TEXT,
        "prompt": pyarrow.list_(pyarrow.struct({"role": _TEXT, "content": _TEXT})),
        "ability": _TEXT,
        "reward_model": pyarrow.struct({"style": _TEXT, "ground_truth": pyarrow.struct({"target": _TEXTS})}),
        "extra_info": pyarrow.struct({"split": _TEXT, "index": pyarrow.int64()}),
    }
)


@contextmanager
def _explain_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({_one_line(error)}); give a complete Parquet file") from error


def schema(path: Path) -> Schema:
    """Read the schema of a file; raise InputError if it is not Parquet."""
    with _explain_read_errors(path):
        return parquet.read_schema(path)


def count(path: Path) -> int:
    """Return the number of rows of a file."""
    with _explain_read_errors(path):
        return int(parquet.read_metadata(path).num_rows)


def rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file in order, read in batches; times finer than a microsecond raise InputError."""
    # Without a buffer size, pyarrow holds whole columns of a row group in memory.
    with _explain_read_errors(path), parquet.ParquetFile(path, buffer_size=BUFFER) as table:
        for batch in table.iter_batches(BATCH, columns=columns):
            # pyarrow returns nanoseconds as pandas objects if pandas is installed, and otherwise rejects some of them.
            whole = pyarrow.schema([field.with_type(_in_microseconds(field.type)) for field in batch.schema])
            yield from (batch if whole == batch.schema else _cast(batch, whole, path)).to_pylist()


def _cast(batch: Any, whole: Schema, path: Path) -> Any:
    """Cast a batch; raises InputError with the name of a column that would lose digits."""
    columns = []
    for field, column in zip(whole, batch.columns, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pyarrow.ArrowInvalid as error:
            raise InputError(
                f"the column {field.name!r} of {path} has times finer than a microsecond ({_one_line(error)}); round "
                "them to microseconds, or remove the column"
            ) from error
    return pyarrow.RecordBatch.from_arrays(columns, schema=whole)


def text_columns(columns: Schema) -> list[str]:
    """Return the names of the columns that hold neither vectors nor raw bytes."""
    return [field.name for field in columns if not _is_bulk(field.type)]


def write(path: Path, content: Iterable[Mapping[str, Any]], columns: Schema) -> int:
    """Write rows and return their number; raise ValueError if a row does not fit. Maps may be lists of pairs."""
    mapped = [field for field in columns if _holds_map(field.type)]

    def with_maps(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**row, **{field.name: _map_entries(row.get(field.name), field.type) for field in mapped}}

    waiting, written = iter(map(with_maps, content) if mapped else content), 0
    try:
        with parquet.ParquetWriter(path, columns) as file:
            while group := list(islice(waiting, GROUP)):
                file.write_table(pyarrow.Table.from_pylist(group, schema=columns))
                written += len(group)
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(_one_line(error)) from error
    return written


def infer_schema(content: Sequence[Mapping[str, Any]]) -> Schema:
    """Infer the schema of rows, with columns in order of appearance; raise ValueError if types conflict."""
    names = dict.fromkeys(name for row in content for name in row)
    try:
        return pyarrow.table({name: [row.get(name) for row in content] for name in names}).schema
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(_one_line(error)) from error


def encode_schema(columns: Schema) -> str:
    """Encode a schema as text, including nested types and metadata."""
    return base64.b64encode(columns.serialize()).decode("ascii")


def decode_schema(text: str) -> Schema:
    """Decode a schema that `encode_schema` wrote; raise ValueError for any other text."""
    try:
        return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(text, validate=True)))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"not a schema: {_one_line(error)}") from error


def _map_entries(value: Any, kind: Any) -> Any:
    """Convert the entries of maps to tuples; pyarrow rejects values of other types."""
    types = pyarrow.types
    if types.is_map(kind) and isinstance(value, list):
        inner = (kind.key_type, kind.item_type)
        return [
            tuple(map(_map_entries, pair, inner)) if isinstance(pair, list | tuple) and len(pair) == 2 else pair
            for pair in value
        ]
    if _is_list(kind) and isinstance(value, list):
        return [_map_entries(each, kind.value_type) for each in value]
    if types.is_struct(kind) and isinstance(value, dict):
        return {field.name: _map_entries(value.get(field.name), field.type) for field in kind}
    return value


def _holds_map(kind: Any) -> bool:
    types = pyarrow.types
    if types.is_struct(kind):
        return any(_holds_map(field.type) for field in kind)
    return bool(types.is_map(kind)) or (_is_list(kind) and _holds_map(kind.value_type))


def _in_microseconds(kind: Any) -> Any:
    """Return a type with its nanoseconds, also nested ones, replaced by microseconds."""
    types = pyarrow.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pyarrow.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pyarrow.duration("us")
    if types.is_time64(kind):
        return pyarrow.time64("us")
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_in_microseconds(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pyarrow.large_list(_in_microseconds(kind.value_type))
    if types.is_list(kind):
        return pyarrow.list_(_in_microseconds(kind.value_type))
    return kind


def _is_list(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bulk(kind: Any) -> bool:
    types = pyarrow.types
    if _is_list(kind):
        return bool(types.is_floating(kind.value_type)) or _is_bulk(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
