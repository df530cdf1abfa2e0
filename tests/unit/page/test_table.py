"""Tables hold what they are given, as text."""

from collections.abc import Callable

import pytest

from sleuth.page.table import leaves, pairs, table
from sleuth.page.text import element

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]


def test_figures_are_marked(read: Read) -> None:
    elements, _ = read(
        table(
            ["kind", "n", "EM", "gain", "note"], [["1 hop", 12, "0.5 [0.4, 0.6]", element("b", "+0.1 [0, 1]"), "1 of"]]
        )
    )
    assert [attributes.get("class") for tag, attributes in elements if tag == "td"] == [
        "figure",
        "figure",
        "figure",
        None,
    ]


def test_a_column_of_figures_has_its_name_above_them(read: Read) -> None:
    elements, _ = read(table(["kind", "n", "note"], [["1 hop", 12, "a few"], ["2 hops", "–", 3]]))
    assert [attributes.get("class") for tag, attributes in elements if tag == "th"][:3] == [None, "figure", None]


def test_an_interval_is_quieter_than_its_figure() -> None:
    assert '<td class="figure">0.5<span class="quiet"> [0.4, 0.6]</span></td>' in table(
        ["a", "b"], [["x", "0.5 [0.4, 0.6]"]]
    )


def test_the_leaves_of_a_tree_have_dotted_names() -> None:
    tree = {"a": {"b": {"c": 1.5}, "d": "x"}, "e": None, "f": {}}
    assert list(leaves(tree)) == [("a.b.c", "1.5"), ("a.d", "x"), ("e", "–")]


def test_cells_are_escaped(read: Read) -> None:
    elements, text = read(table(["<i>"], [["<script>"]], caption="<u>") + pairs([("<a>", "<b>")]))
    assert not {tag for tag, _ in elements} & {"i", "script", "u", "a", "b"}
    assert "<u><i><script><a><b>" in text


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells under a header of 1"):
        table(["a"], [["b", "c"]])
