"""Multi-hop questions: bridges, comparisons, bridge comparisons and quotas, on a corpus written for them."""

from collections import Counter
from random import Random

import pytest

from sleuth.records import Passage
from sleuth.synthesis.cloze.bridges import Chain, bridge_drafts, extend_chain, find_links, start_chain
from sleuth.synthesis.cloze.comparisons import Comparison, Comparisons, compare_makers
from sleuth.synthesis.cloze.english import Kind
from sleuth.synthesis.cloze.generator import GeneratorConfig, QuestionCollector, generate
from sleuth.synthesis.cloze.grammar import Draft, Form
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.relations import Relation
from sleuth.synthesis.cloze.single_hop import Page, analyze

FILM = (
    "Night Harbour",
    "Night Harbour is a 1961 British crime film directed by Anna Pell. It was released on 4 May 1961.",
)
DIRECTOR = (
    "Anna Pell",
    "Anna Pell (12 March 1920 – 3 June 1988) was a British film director. She was born in Dover, Kent.",
)
TOWN = ("Dover", "Dover is a port town in Kent, England. Dover was founded in 1050. Its population was 31,022.")
SECOND = ("Low Tide", "Low Tide is a 1950 American drama film directed by Tom Reed.")
OTHER = ("Tom Reed", "Tom Reed (5 May 1901 – 1 July 1999) was an American film director and painter.")


def corpus(*pages: tuple[str, str]) -> list[Passage]:
    return [Passage(title, f'"{title}"\n{text}') for title, text in pages]


def analyzed(*pages: tuple[str, str]) -> tuple[Lexicon, dict[str, Page]]:
    passages = corpus(*pages)
    lexicon = Lexicon.from_passages(enumerate(passages))
    found = {passage.id: analyze(passage, lexicon) for passage in passages}
    return lexicon, {name: page for name, page in found.items() if page}


def chain_of(lexicon: Lexicon, first: Page, second: Page) -> Chain | None:
    """The chain over the first link from one page to another."""
    rng = Random(0)
    chains = (
        extend_chain(start_chain(first, rng), link, second, (second,), rng) for link in find_links(first, lexicon)
    )
    return next(filter(None, chains), None)


def test_chain_names_only_its_first_page() -> None:
    lexicon, pages = analyzed(FILM, DIRECTOR)
    chain = chain_of(lexicon, pages["Night Harbour"], pages["Anna Pell"])
    assert chain is not None
    found = {draft.answer: draft.text for draft in bridge_drafts(chain, Random(0))}
    assert {"12 March 1920", "3 June 1988", "Dover, Kent"} <= set(found)
    for text in found.values():
        assert "Night Harbour" in text
        assert "Pell" not in text


def test_three_hops_in_reading_order() -> None:
    made = generate(corpus(FILM, DIRECTOR, TOWN), GeneratorConfig(200, per_passage=20, hops_share=0.9))
    three = [question for question in made.questions if question.hops == 3]
    assert three
    for question in three:
        assert question.supporting_ids == ("Night Harbour", "Anna Pell", "Dover")
        assert "night harbour" in question.question.lower()
        assert "dover" not in question.question.lower()
    assert ("31,022", "31022") in {question.golden_answers for question in three}


@pytest.mark.parametrize(
    "others",
    [
        # two people with the same name, neither mentions the film
        (DIRECTOR, ("Anna Pell (painter)", "Anna Pell (born 1801) was a painter.")),
        # a person of that name with another occupation
        (("Anna Pell", "Anna Pell (12 March 1920 – 3 June 1988) was a British chess player. She died in York."),),
    ],
)
def test_ambiguous_name_is_not_followed(others: tuple[tuple[str, str], ...]) -> None:
    lexicon, pages = analyzed(FILM, *others)
    for page in pages.values():
        assert page.title == "Night Harbour" or chain_of(lexicon, pages["Night Harbour"], page) is None


def test_answer_in_the_first_passage_is_not_asked() -> None:
    film = (FILM[0], f"{FILM[1]} Anna Pell was a British film director born on 12 March 1920 in Dover.")
    lexicon, pages = analyzed(film, DIRECTOR)
    chain = chain_of(lexicon, pages["Night Harbour"], pages["Anna Pell"])
    assert chain is not None
    answers = {draft.answer for draft in bridge_drafts(chain, Random(0))}
    assert "3 June 1988" in answers
    assert not {"12 March 1920", "British"} & answers


def test_contradicted_fact_is_not_asked() -> None:
    later = Passage("later", '"Dover"\nDover is a port town in Kent, England. Its population was 40,000.')
    passages = [*corpus(DIRECTOR, TOWN), later]
    lexicon = Lexicon.from_passages(enumerate(passages))
    person, town, again = (analyze(passage, lexicon) for passage in passages)
    assert person
    assert town
    assert again
    rng = Random(0)
    link = next(each for each in find_links(person, lexicon) if each.relation is Relation.BIRTHPLACE)
    for alternatives, known in (((town,), True), ((town, again), False)):
        chain = extend_chain(start_chain(person, rng), link, town, alternatives, rng)
        assert chain
        assert ("31,022" in {draft.answer for draft in bridge_drafts(chain, rng)}) is known


def compare(*pages: tuple[str, str]) -> dict[str, Comparison]:
    """Comparisons from a thousand draws, by text."""
    _, found = analyzed(*pages)
    rng = Random(0)
    comparisons = Comparisons(rng)
    for page in found.values():
        comparisons.add(page)
    drawn = (comparisons.compare(rng.choice(list(found.values()))) for _ in range(1000))
    return {each.text: each for each in drawn if each}


def test_comparisons_of_people() -> None:
    found = compare(DIRECTOR, OTHER)
    for pair in ("Anna Pell or Tom Reed", "Tom Reed or Anna Pell"):
        assert found[f"Who was born first, {pair}?"].answers == ("Tom Reed",)
        assert found[f"Who is younger, {pair}?"].answers == ("Anna Pell",)
        assert found[f"Who died later, {pair}?"].answers == ("Tom Reed",)
        assert found[f"Which director was born later, {pair}?"].answers == ("Anna Pell",)
        assert found[f"Who lived longer, {pair}?"].answers == ("Tom Reed",)
        assert found[f"Who is American, {pair}?"].answers == ("Tom Reed",)
    assert found["Do Anna Pell and Tom Reed have the same nationality?"].answers == ("no",)
    assert found["Are Anna Pell and Tom Reed both directors?"].answers == ("yes",)
    assert found["What occupation do Anna Pell and Tom Reed share?"].answers == ("director",)


def test_comparisons_of_works() -> None:
    found = compare(FILM, SECOND)
    assert found["Which film came out first, Night Harbour or Low Tide?"].answers == ("Low Tide",)
    assert found["Which film was released later, Low Tide or Night Harbour?"].answers == ("Night Harbour",)
    assert found["Are the films Low Tide and Night Harbour from the same country?"].answers == ("no",)
    assert found["Were Low Tide and Night Harbour directed by the same person?"].answers == ("no",)


def test_possibly_equal_values_are_not_compared() -> None:
    scot = ("Ben Roe", "Ben Roe (born 12 March 1920) is a Scottish film director.")
    found = compare(DIRECTOR, scot)
    assert found
    assert not [text for text in found if "nationality" in text or "country" in text or "born" in text]


def test_comparison_of_makers() -> None:
    _, pages = analyzed(FILM, DIRECTOR, SECOND, OTHER)
    one = pages["Night Harbour"], pages["Anna Pell"]
    other = pages["Low Tide"], pages["Tom Reed"]
    rng = Random(0)
    drawn = [compare_makers(one, other, Relation.DIRECTOR, rng) for _ in range(300)]
    found = {each.text: each for each in drawn if each}
    first = found["Which film has the director who was born first, Night Harbour or Low Tide?"]
    assert first.answers == ("Low Tide",)
    assert [page.title for page in first.pages] == ["Night Harbour", "Low Tide", "Anna Pell", "Tom Reed"]
    assert found["Which film has the director who died later, Low Tide or Night Harbour?"].answers == ("Low Tide",)
    same = found["Do the directors of the films Night Harbour and Low Tide have the same nationality?"]
    assert same.answers == ("no",)
    assert compare_makers(one, one, Relation.DIRECTOR, rng) is None


def test_yes_and_no_are_balanced() -> None:
    _, pages = analyzed(DIRECTOR, OTHER)
    both = tuple(pages.values())
    collector = QuestionCollector("set", 1000, set(), Random(0), max_wordings=1000)
    for number in range(20):
        collector.add_multi_hop(both, both, f"Are both alike, number {number}?", ("no",), "comparison")
    assert len(collector.questions) == 3
    collector.add_multi_hop(both, both, "Are both tall?", ("yes",), "comparison")
    assert collector.add_multi_hop(both, both, "Are both small?", ("no",), "comparison")


def test_second_wording_needs_permission() -> None:
    _, pages = analyzed(DIRECTOR)
    collector = QuestionCollector("set", 1000, set(), Random(0))
    draft = Draft("When was Anna Pell born?", "12 March 1920", Kind.DATE, Form.FACT, "Anna Pell")
    page, again = pages["Anna Pell"], "On what date was Anna Pell born?"
    assert collector.add_single_hop(page, draft.text, draft)
    assert not collector.add_single_hop(page, again, draft)
    collector.max_wordings = 2
    assert not collector.add_single_hop(page, draft.text, draft)
    assert collector.add_single_hop(page, again, draft)


def test_multi_hop_share_is_kept() -> None:
    people = [
        (f"Ada P{chr(97 + n)}", f"Ada P{chr(97 + n)} (born {n + 1} May {1900 + n}) is a British chess player.")
        for n in range(20)
    ]
    made = generate(corpus(*people), GeneratorConfig(10_000, hops_share=0.4))
    hops = Counter(question.hops for question in made.questions)
    assert hops[1] == 20
    assert 10 <= hops[2] <= 15
    assert not [
        each for each in generate(corpus(*people), GeneratorConfig(100, hops_share=0.0)).questions if each.hops != 1
    ]
