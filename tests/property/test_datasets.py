"""Any Parquet file of Search-R1 survives the conversion to JSONL and back."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sleuth.corpus.datasets.merge import MergeRules, question_key
from sleuth.corpus.datasets.prepare import ROWS, TABLE, QuestionSource, prepare

PATIENCE = settings(max_examples=15, deadline=None)
words = st.text(max_size=12)
said = words.filter(str.strip)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    asked, answers = draw(said), [draw(said), *draw(st.lists(words, max_size=3))]
    return {
        "data_source": draw(st.sampled_from(["nq", "searchR1_nq", "hotpotqa"])),
        "question": draw(st.sampled_from([asked, None])),
        "prompt": [{"role": "user", "content": f"{draw(words)}Question: {asked}"}],
        "ability": draw(st.none() | words),
        "reward_model": {"style": draw(words), "ground_truth": {"target": answers}},
        "extra_info": {
            "split": "train",
            "index": draw(st.integers(-5, 5)),
            "kwargs": {"same": draw(st.sampled_from([asked, answers[0]])), "other": draw(st.none() | st.floats())},
        },
        "$": {"$": draw(st.sampled_from(["prompt", "NaN", asked]))},
        "weights": draw(st.lists(st.tuples(st.sampled_from([*answers, "b"]), st.lists(st.floats(), max_size=2)))),
        "nested": [{"maps": draw(st.none() | st.lists(st.tuples(words, st.lists(st.tuples(words, words)))))}],
    }


MAP = pyarrow.map_(pyarrow.string(), pyarrow.map_(pyarrow.string(), pyarrow.string()))
MAPS = {
    "weights": pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.float64())),
    "nested": pyarrow.list_(pyarrow.struct([("maps", MAP)])),
}


def typed(drawn: list[dict[str, Any]]) -> Any:
    """Write a table with maps, whose values look like lists."""
    plain = [{name: value for name, value in row.items() if name not in MAPS} for row in drawn]
    table = pyarrow.Table.from_pylist(plain)
    for name, kind in MAPS.items():
        table = table.append_column(name, pyarrow.array([row[name] for row in drawn], kind))
    return table


def strictly(path: Path) -> None:
    """Refuse NaN, as other JSON readers do."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        json.loads(line or "{}", parse_constant=refuse)


def refuse(question: object) -> list[dict[str, str]]:
    raise AssertionError(f"{question} has a prompt of its own")


@PATIENCE
@given(st.lists(rows(), min_size=1, max_size=5))
def test_parquet_round_trip(drawn: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        parquet.write_table(typed(drawn), folder / "before.parquet")
        prepare(
            [QuestionSource("it", folder / "before.parquet")], folder / "ours", refuse, rules=MergeRules(repeated=False)
        )
        prepare(
            [QuestionSource("it", folder / "ours" / ROWS)], folder / "again", refuse, rules=MergeRules(repeated=False)
        )
        strictly(folder / "ours" / ROWS)
        after = parquet.read_table(folder / "again" / TABLE)
        assert after.schema.equals(parquet.read_schema(folder / "before.parquet"), check_metadata=True)
        assert repr(after.to_pylist()) == repr(drawn)  # repr, because NaN is not itself


@PATIENCE
@given(said)
def test_case_and_punctuation_do_not_change_the_key(asked: str) -> None:
    assert question_key(f" {asked}  ? ") == question_key(asked) or not any(letter.isalnum() for letter in asked)
