"""What holds of pages whatever the text and the numbers."""

import re
from html.parser import HTMLParser
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.page.charts import BOTTOM, LEFT, RIGHT, TOP, Series, axis, line_chart
from sleuth.page.document import document, element, escaped
from sleuth.page.transcript import transcript

QUICK = settings(max_examples=80, deadline=None)

scraps = st.sampled_from(
    [*"<>'&x \r\u202e\"", "\r\n", "</", "&lt;", "<script>", "</style>", "<!--", "-->", "]]>", "onload="]
)
texts = st.one_of(st.text(max_size=30), st.lists(scraps, max_size=8).map("".join))
numbers = st.one_of(st.none(), st.floats(), st.floats(-10, 10), st.integers(-3, 3).map(float))
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]|\r(?!\n)"
)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.open: list[str] = []
        self.names: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names.update(name for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    assert reader.open == []
    return reader


@QUICK
@given(texts, texts)
def test_text_is_read_back_as_it_was_and_makes_no_element(text: str, attribute: str) -> None:
    reader = read(element("p", text, title=attribute))
    assert reader.tags == ["p"]
    assert reader.text == FORBIDDEN.sub("\ufffd", text)
    assert reader.names == {"title"}
    assert escaped(text).encode().decode() == escaped(text)


@QUICK
@given(texts)
def test_a_page_has_the_same_shape_whatever_is_said_in_it(text: str) -> None:
    def page(said: str) -> Reader:
        hit = {"id": said, "score": 1.0, "title": said, "text": said, "gold": True}
        turn = {"action": "search", "query": said, "text": said, "outcome": "found", "tokens": 3, "hits": [hit]}
        row = {"question": said, "golden_answers": [said], "turns": [turn], "stop": "answered", "score": None}
        return read(document(said, transcript(row)))

    filled = f"x{text}x"
    assert page(filled).tags == page("x").tags
    assert page(filled).names == page("x").names


@QUICK
@given(st.lists(numbers, max_size=12), st.sampled_from([None, 0.0]), st.sampled_from([None, 1.0]))
def test_a_chart_is_drawn_inside_its_frame_whatever_the_numbers(
    values: list[float | None], low: float | None, high: float | None
) -> None:
    chart = line_chart(
        "t", [Series("s", list(range(len(values))), values, low=values, high=values)], low=low, high=high
    )
    read(chart)
    assert not re.search(r"\b(nan|inf|infinity)\b", chart, re.IGNORECASE)
    for drawn in re.findall(r'<path d="(M[^"H]*)"', chart):
        for x, y in re.findall(r"([-\d.e+]+),([-\d.e+]+)", drawn):
            assert LEFT <= float(x) <= RIGHT
            assert TOP <= float(y) <= BOTTOM


@QUICK
@given(st.lists(st.floats(-1e90, 1e90), min_size=1, max_size=6))
def test_ticks_are_few_rising_and_on_the_axis(values: list[float]) -> None:
    made = axis(values, 0.0, 100.0)
    ticks = made.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(first < second for first, second in pairwise(ticks))
    slack = made.step * 1e-5
    assert made.low - slack <= min(values)
    assert max(values) <= made.high + slack
    assert len({made.label(tick) for tick in ticks}) == len(ticks)
