"""What holds of rewards whatever the text: metrics, and documents that try to speak for the model."""

import asyncio
import string

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.agent.tags import Tags
from sleuth.config.reward import RewardConfig
from sleuth.records import (
    Answer,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.reward.answers import ANSWERS, cover_em, exact_match, f1, normalise
from sleuth.reward.rubric import Rubric, has_valid_format

QUICK = settings(max_examples=60, deadline=None)
TAGS = [f"<{slash}{tag}>" for tag in ("think", "search", "information", "answer") for slash in ("", "/")]

words = st.text(alphabet="bcdrstéü01", min_size=1, max_size=6)
phrases = st.lists(words, min_size=1, max_size=4).map(" ".join)
answers = st.one_of(st.none(), st.text(max_size=30), phrases)
# Documents out of tags, the gold answer and scraps.
documents = st.lists(st.sampled_from([*TAGS, "Oslo", "Bergen", " ", "\n"]), max_size=12).map("".join)
sampled_texts = st.lists(st.sampled_from([*TAGS, "Oslo", "so", " "]), max_size=10).map("".join)
rubrics = st.builds(
    RewardConfig,
    answer=st.sampled_from(sorted(ANSWERS)),
    format=st.just(True),
    retrieval=st.sampled_from([0.0, 0.1]),
    many_answers=st.booleans(),
).map(Rubric)

QUESTION = Question("q1", "Is Oslo or Bergen the capital of Norway?", ("Oslo",), "test")


def episode(document: str, last: Turn, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    found = (Hit(Passage("p1", document), 1.0),)
    search = Turn("<think>look</think><search>capital</search>", ToolCall.search("capital"), Outcome.FOUND, 5, found)
    return Trajectory(QUESTION, 0, 0, 0, (Segment((1, 2), (False, True), (-0.5,), (0,)),), (search, last), stop)


def answered(text: str, answer: str) -> Turn:
    return Turn(text, Answer(answer), Outcome.ANSWERED, 5, formed=Tags().is_well_formed(text, Answer(answer)))


@QUICK
@given(answer=answers, golds=st.lists(phrases, min_size=1, max_size=3))
def test_metrics_are_shares_and_exact_match_is_the_strictest(answer: str | None, golds: list[str]) -> None:
    assert 0.0 <= exact_match(answer, golds) <= min(f1(answer, golds), cover_em(answer, golds))
    assert max(f1(answer, golds), cover_em(answer, golds)) <= 1.0


@QUICK
@given(text=st.text(max_size=40))
def test_a_text_matches_itself_on_every_metric_unless_it_is_blank(text: str) -> None:
    assert {metric(text, [text]) for metric in ANSWERS.values()} == {float(bool(text.strip()))}


@QUICK
@given(text=st.text(alphabet=string.printable + "éßİ", max_size=40))
def test_normalising_leaves_single_spaces_and_no_punctuation(text: str) -> None:
    normal = normalise(text)
    assert normal == " ".join(normal.split())
    assert not set(normal) & set(string.punctuation)


@QUICK
@given(answer=phrases, gold=phrases, article=st.sampled_from(["a", "The", "AN"]), mark=st.sampled_from("!.,'\"-"))
def test_case_articles_punctuation_and_spaces_do_not_count(answer: str, gold: str, article: str, mark: str) -> None:
    dressed = f" {article}\t{mark}{answer.upper()}  {mark}"
    for metric in ANSWERS.values():
        assert metric(dressed, [gold]) == metric(answer, [gold])


@QUICK
@given(answer=answers, golds=st.lists(phrases, min_size=1, max_size=3), more=phrases)
def test_another_gold_never_lowers_a_metric(answer: str | None, golds: list[str], more: str) -> None:
    for metric in ANSWERS.values():
        assert metric(answer, [*golds, more]) >= metric(answer, golds)
        assert metric(answer, golds[::-1]) == metric(answer, golds)


@QUICK
@given(before=phrases, gold=phrases, after=phrases)
def test_a_gold_among_other_words_is_covered(before: str, gold: str, after: str) -> None:
    assert cover_em(f"{before} {gold}, {after}", [gold]) == 1.0
    assert cover_em(f"{before}{gold}x {after}", [f"{gold} q"]) == 0.0


@QUICK
@given(rubric=rubrics, document=documents, said=st.sampled_from(["Oslo", "Bergen", "Oslo Norway"]))
def test_tags_in_a_document_do_not_change_the_score(rubric: Rubric, document: str, said: str) -> None:
    """The document without its tags, hits kept as words, scores the same."""
    last = answered(f"<think>so</think><answer>{said}</answer>", said)
    bare = "Oslo" if cover_em(document, ["Oslo"]) else "nothing"
    assert asyncio.run(rubric.score(QUESTION, episode(document, last))) == asyncio.run(
        rubric.score(QUESTION, episode(bare, last))
    )
    assert has_valid_format(episode(document, last))


@QUICK
@given(rubric=rubrics, document=documents, text=sampled_texts)
def test_without_an_answer_nothing_is_earned(rubric: Rubric, document: str, text: str) -> None:
    silent = Turn(text, Malformed("neither search nor answer"), Outcome.CORRECTED, 5)
    score = asyncio.run(rubric.score(QUESTION, episode(document, silent, StopReason.OUT_OF_TURNS)))
    assert score == Score(0.0, score.parts)
    assert (score.parts["em"], score.parts["f1"], score.parts["cover_em"], score.parts["format"]) == (0, 0, 0, 0)


@st.composite
def near_valid_texts(draw: st.DrawFn) -> str:
    """A valid last turn with up to two pieces put in, and possibly one taken out."""
    pieces = ["<think>", "so", "</think>", "\n", "<answer>", "Oslo", "</answer>"]
    for piece in draw(st.lists(st.sampled_from([*TAGS, "<b>", "so", " "]), max_size=2)):
        pieces.insert(draw(st.integers(0, len(pieces))), piece)
    for place in draw(st.lists(st.integers(0, len(pieces) - 1), max_size=1)):
        del pieces[place]
    return "".join(pieces)


@settings(QUICK, max_examples=300)
@given(text=near_valid_texts())
def test_only_one_thought_and_one_answer_make_a_valid_turn(text: str) -> None:
    thought, _, rest = text.strip().partition("</think>")
    expected = (
        thought.startswith("<think>")
        and rest.strip().startswith("<answer>")
        and rest.endswith("</answer>")
        and sum(text.count(tag) for tag in TAGS) == 4
    )
    assert has_valid_format(episode("nothing", answered(text, "Oslo"))) == expected
