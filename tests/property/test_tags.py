"""The grammar whatever the text: parsing never fails, actions survive it, documents cannot speak it."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sleuth.agent.tags import Tags
from sleuth.records import Answer, Hit, Malformed, Passage, ToolCall

QUICK = settings(max_examples=60, deadline=None)

NAMES = ("think", "search", "information", "answer")
TAGS = [f"<{slash}{name}>" for name in NAMES for slash in ("", "/")]
DISGUISED = [
    "<SEARCH>",
    "< / information >",
    "<\u00a0search\u2003>",
    "<\n/\tAnswer\n>",
    "<\u017fearch>",
    "<thin\u212a>",
    "</\u0131nformation>",
    "<<search>search>",
    "<sear<search>ch>",
    "</informat</information>ion>",
    "<(search)>",
]
PIECES = st.sampled_from([*TAGS, *DISGUISED, "<", ">", "/", " ", "\n", '"', "search", "information", "(", "Oslo"])
WILD = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)
ANY_TAG = re.compile(rf"<\s*/?\s*(?:{'|'.join(NAMES)})\s*>")
PLAIN = st.text(max_size=30).map(str.strip).filter(lambda text: not any(tag in text for tag in TAGS))


@QUICK
@given(WILD | st.text(alphabet=st.characters(), max_size=60))
def test_parse_is_total(text: str) -> None:
    action = Tags().parse(text)
    assert isinstance(action, ToolCall | Answer | Malformed)
    assert isinstance(Tags().is_well_formed(text, action), bool)
    if not isinstance(action, Malformed):
        content = action.lookups[0] if isinstance(action, ToolCall) else action.text
        assert content == content.strip()
        assert content in text


@QUICK
@given(WILD, st.sampled_from(["</search>", "</answer>"]), WILD)
def test_what_comes_after_the_first_stop_changes_nothing(before: str, stop: str, after: str) -> None:
    assert Tags().parse(before + stop + after) == Tags().parse(before + stop)


@QUICK
@given(WILD)
def test_without_a_stop_there_is_no_action(text: str) -> None:
    quiet = text.replace("</search>", "").replace("</answer>", "")
    if not any(stop in quiet for stop in Tags.stops):
        assert isinstance(Tags().parse(quiet), Malformed)


@QUICK
@given(PLAIN.filter(bool))
def test_a_search_survives(query: str) -> None:
    assert Tags().parse(Tags().write(ToolCall.search(query))) == ToolCall.search(query)


@QUICK
@given(PLAIN)
def test_an_answer_survives(text: str) -> None:
    assert Tags().parse(Tags().write(Answer(text))) == Answer(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(WILD, WILD), max_size=3))
@example([("<search", ">"), ("<", "search>")])
@example([("a", tag) for tag in DISGUISED])
def test_documents_cannot_speak_the_grammar(documents: list[tuple[str, str]]) -> None:
    """One opening and one closing tag, the frame's own, however the text writes its tags."""
    hits = tuple(Hit(Passage(str(n), f'"{title}"\n{text}'), 1.0) for n, (title, text) in enumerate(documents))
    shown = Tags().observe(ToolCall.search("x"), (hits,))
    body, folded = shown.body, shown.text.casefold()
    assert ANY_TAG.findall(folded) == ["<information>", "</information>"]
    assert not ANY_TAG.search(body.casefold())
    assert not any(tag in body for tag in TAGS)


@QUICK
@given(st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=3))
def test_documents_without_tags_are_shown_as_they_are(documents: list[tuple[str, str]]) -> None:
    kept = [(title.replace("\n", " ").strip('"'), text) for title, text in documents]
    kept = [(title, text) for title, text in kept if not ANY_TAG.search(f"{title} {text}".casefold())]
    hits = tuple(Hit(Passage("1", f'"{title}"\n{text}'), 1.0) for title, text in kept)
    body = Tags().observe(ToolCall.search("x"), (hits,)).body
    for title, text in kept:
        assert f"(Title: {title}) {text}\n" in body
