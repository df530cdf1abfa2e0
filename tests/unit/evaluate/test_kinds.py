"""The kinds of question."""

import pytest

from sleuth.evaluate.kinds import kind, place
from sleuth.records import Question


@pytest.mark.parametrize(
    ("form", "hops", "expected"),
    [
        ("one_hop", 1, "1 hop"),
        ("three_hop", 3, "3 hops"),
        ("comparison", 2, "comparison"),
        ("yes_no", 2, "yes/no"),
        ("bridge", None, "bridge"),
        ("bridge_comparison", None, "bridge comparison"),
        (None, None, "nq"),
        (None, 2, "2 hops"),
    ],
)
def test_kind(form: str | None, hops: int | None, expected: str) -> None:
    assert kind(Question("q", "?", ("a",), "nq", type=form, hops=hops)) == expected


def test_order() -> None:
    kinds = ["nq", "yes/no", "3 hops", "bamboogle", "comparison", "1 hop", "2 hops"]
    assert sorted(kinds, key=place) == ["1 hop", "2 hops", "3 hops", "comparison", "yes/no", "bamboogle", "nq"]
