"""Whatever a corpus says, a made question keeps its answer to itself, and its passage holds it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.corpus.cloze.excluded import Excluded
from sleuth.corpus.cloze.making import Terms, make
from sleuth.corpus.datasets.merge import key
from sleuth.corpus.world.world import World
from sleuth.records import Passage
from sleuth.reward.answers import cover_em

WORLD = list(World(300, 5).passages())
NAMES = st.sampled_from(
    ["Ada Pell", "Tom Reed", "Dover", "Low Tide", "the Silver Cup", "York, England", "A. B. Cole", "É"]
)
VERBS = ["is a", "was born in", "film directed by", "won", "The film was released", "of"]
PIECES = st.sampled_from([*VERBS, "in 1962", "on 4 May 1961", "and", ",", "(born 1920)", "He", '"', ".", "14 films"])
TEXTS = st.lists(NAMES | PIECES | st.text(max_size=6), max_size=30).map(" ".join)
CORPORA = st.lists(st.tuples(NAMES, TEXTS), min_size=1, max_size=6).map(
    lambda pages: [Passage(f"p{n}", f'"{title}"\n{title} {text}.') for n, (title, text) in enumerate(pages)]
)


@settings(max_examples=150, deadline=None)
@given(CORPORA, st.integers(0, 9), st.sets(st.sampled_from(["p0", "p1", "p2"])))
def test_made_questions_are_sound(corpus: list[Passage], seed: int, left_out: set[str]) -> None:
    terms = Terms(20, seed, per_passage=3)
    made = make(corpus, terms, Excluded(frozenset(left_out)))
    held = {passage.id: passage for passage in corpus}
    assert made.questions == make(corpus, terms, Excluded(frozenset(left_out))).questions
    assert len({key(question.question) for question in made.questions}) == len(made.questions)
    for question in made.questions:
        assert not left_out & set(question.supporting_ids)
        assert not cover_em(question.question, question.golden_answers)
        assert cover_em(held[question.supporting_ids[-1]].contents, question.golden_answers[:1])
    assert max(made.used.values(), default=0) <= 3


def test_generated_world_gives_questions_too() -> None:
    made = make(WORLD, Terms(200, 0))
    assert len(made.questions) > 100
    held = {passage.id: passage for passage in WORLD}
    for question in made.questions:
        assert cover_em(held[question.supporting_ids[-1]].contents, question.golden_answers)
        assert not cover_em(question.question, question.golden_answers)
