"""What Search-R1's Parquet holds comes back whatever it says."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sleuth.corpus.datasets.folder import ROWS, TABLE, Source, prepare
from sleuth.corpus.datasets.merge import Rules, key

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
    }


def refuse(question: object) -> list[dict[str, str]]:
    raise AssertionError(f"{question} has a prompt of its own")


@PATIENCE
@given(st.lists(rows(), min_size=1, max_size=5))
def test_parquet_ours_parquet(drawn: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        before = pyarrow.Table.from_pylist(drawn)
        parquet.write_table(before, folder / "before.parquet")
        prepare([Source("it", folder / "before.parquet")], folder / "ours", refuse, rules=Rules(repeated=False))
        prepare([Source("it", folder / "ours" / ROWS)], folder / "again", refuse, rules=Rules(repeated=False))
        after = parquet.read_table(folder / "again" / TABLE)
        assert after.schema.equals(parquet.read_schema(folder / "before.parquet"), check_metadata=True)
        assert repr(after.to_pylist()) == repr(drawn)  # repr, because NaN is not itself


@PATIENCE
@given(said)
def test_the_same_question_in_capitals_and_with_a_mark_is_the_same(asked: str) -> None:
    assert key(f" {asked}  ? ") == key(asked) or not any(letter.isalnum() for letter in asked)
