"""For any corpus, generated questions are answered by their passages and do not reveal the answer."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.corpus.datasets.merge import question_key
from sleuth.records import Passage, Question
from sleuth.reward.answers import cover_em
from sleuth.synthesis.cloze.exclusion import Exclusions
from sleuth.synthesis.cloze.generator import GeneratorConfig, generate
from sleuth.synthesis.world.world import World

COMPARED = ("comparison", "bridge comparison")
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
def test_generated_questions_are_valid(corpus: list[Passage], seed: int, excluded: set[str]) -> None:
    config = GeneratorConfig(20, seed, per_passage=3)
    made = generate(corpus, config, Exclusions(frozenset(excluded)))
    held = {passage.id: passage for passage in corpus}
    assert made.questions == generate(corpus, config, Exclusions(frozenset(excluded))).questions
    assert len({question_key(question.question) for question in made.questions}) == len(made.questions)
    for question in made.questions:
        assert not excluded & set(question.supporting_ids)
        assert question.hops == len(set(question.supporting_ids))
        _check_answer(question, held)
    alone = Counter(question.supporting_ids[0] for question in made.questions if question.hops == 1)
    assert max(alone.values(), default=0) <= 3


def _check_answer(question: Question, held: dict[str, Passage]) -> None:
    """The last passage has the answer; only comparisons name it in the question."""
    pages = [held[name].contents for name in question.supporting_ids]
    if question.type not in COMPARED:
        assert not cover_em(question.question, question.golden_answers)
        assert cover_em(pages[-1], question.golden_answers[:1])
    elif question.golden_answers[0] not in ("yes", "no"):
        assert any(cover_em(page, question.golden_answers[:1]) for page in pages)


def test_questions_about_the_generated_world() -> None:
    made = generate(WORLD, GeneratorConfig(200, 0))
    assert len(made.questions) > 100
    held = {passage.id: passage for passage in WORLD}
    for question in made.questions:
        _check_answer(question, held)
