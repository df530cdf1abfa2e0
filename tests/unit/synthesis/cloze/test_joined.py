"""Questions over several passages: chains, comparisons and works with their makers, on a corpus written for them."""

from collections import Counter
from random import Random

import pytest

from sleuth.records import Passage
from sleuth.synthesis.cloze.bridges import Chain, asked, links, longer, starts
from sleuth.synthesis.cloze.comparisons import compared
from sleuth.synthesis.cloze.drafts import Draft
from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.ledger import Ledger
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.makers import crosswise
from sleuth.synthesis.cloze.making import Terms, make
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.pages import Page, read
from sleuth.synthesis.cloze.pools import Comparison, Pools

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


def opened(*pages: tuple[str, str]) -> tuple[Lexicon, dict[str, Page]]:
    passages = corpus(*pages)
    lexicon = Lexicon.learned(enumerate(passages))
    found = {passage.id: read(passage, lexicon) for passage in passages}
    return lexicon, {name: page for name, page in found.items() if page}


def chained(lexicon: Lexicon, first: Page, second: Page) -> Chain | None:
    """The chain over the first link of a page that fits another."""
    dice = Random(0)
    tried = (longer(starts(first, dice), link, second, (second,), dice) for link in links(first, lexicon))
    return next(filter(None, tried), None)


def test_a_chain_names_only_its_first_page() -> None:
    lexicon, pages = opened(FILM, DIRECTOR)
    chain = chained(lexicon, pages["Night Harbour"], pages["Anna Pell"])
    assert chain is not None
    found = {draft.answer: draft.text for draft in asked(chain, Random(0))}
    assert {"12 March 1920", "3 June 1988", "Dover, Kent"} <= set(found)
    for text in found.values():
        assert "Night Harbour" in text
        assert "Pell" not in text


def test_three_hops_in_reading_order() -> None:
    made = make(corpus(FILM, DIRECTOR, TOWN), Terms(200, per_passage=20, hops_share=0.9))
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
        # the name of two people, of whom neither speaks of the film
        (DIRECTOR, ("Anna Pell (painter)", "Anna Pell (born 1801) was a painter.")),
        # someone of that name who makes no films
        (("Anna Pell", "Anna Pell (12 March 1920 – 3 June 1988) was a British chess player. She died in York."),),
    ],
)
def test_a_name_that_may_mean_someone_else_leads_nowhere(others: tuple[tuple[str, str], ...]) -> None:
    lexicon, pages = opened(FILM, *others)
    for page in pages.values():
        assert page.title == "Night Harbour" or chained(lexicon, pages["Night Harbour"], page) is None


def test_answer_that_the_first_passage_gives_needs_no_second() -> None:
    film = (FILM[0], f"{FILM[1]} Anna Pell was a British film director born on 12 March 1920 in Dover.")
    lexicon, pages = opened(film, DIRECTOR)
    chain = chained(lexicon, pages["Night Harbour"], pages["Anna Pell"])
    assert chain is not None
    answers = {draft.answer for draft in asked(chain, Random(0))}
    assert "3 June 1988" in answers
    assert not {"12 March 1920", "British"} & answers


def test_what_another_passage_on_the_same_disputes_is_not_asked() -> None:
    later = Passage("later", '"Dover"\nDover is a port town in Kent, England. Its population was 40,000.')
    passages = [*corpus(DIRECTOR, TOWN), later]
    lexicon = Lexicon.learned(enumerate(passages))
    person, town, again = (read(passage, lexicon) for passage in passages)
    assert person
    assert town
    assert again
    dice = Random(0)
    link = next(each for each in links(person, lexicon) if each.relation is Relation.BIRTHPLACE)
    for rivals, known in (((town,), True), ((town, again), False)):
        chain = longer(starts(person, dice), link, town, rivals, dice)
        assert chain
        assert ("31,022" in {draft.answer for draft in asked(chain, dice)}) is known


def compare(*pages: tuple[str, str]) -> dict[str, Comparison]:
    """All comparisons that a thousand draws show, by their text."""
    _, found = opened(*pages)
    pools, dice = Pools(), Random(0)
    for page in found.values():
        pools.add(page)
    drawn = (compared(dice.choice(list(found.values())), pools, dice) for _ in range(1000))
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


def test_what_is_not_surely_different_is_not_compared() -> None:
    scot = ("Ben Roe", "Ben Roe (born 12 March 1920) is a Scottish film director.")
    found = compare(DIRECTOR, scot)
    assert found
    assert not [text for text in found if "nationality" in text or "country" in text or "born" in text]


def test_works_by_what_their_makers_are() -> None:
    _, pages = opened(FILM, DIRECTOR, SECOND, OTHER)
    one = pages["Night Harbour"], pages["Anna Pell"]
    other = pages["Low Tide"], pages["Tom Reed"]
    dice = Random(0)
    drawn = [crosswise(one, other, Relation.DIRECTOR, dice) for _ in range(300)]
    found = {each.text: each for each in drawn if each}
    first = found["Which film has the director who was born first, Night Harbour or Low Tide?"]
    assert first.answers == ("Low Tide",)
    assert [page.title for page in first.pages] == ["Night Harbour", "Low Tide", "Anna Pell", "Tom Reed"]
    assert found["Which film has the director who died later, Low Tide or Night Harbour?"].answers == ("Low Tide",)
    same = found["Do the directors of the films Night Harbour and Low Tide have the same nationality?"]
    assert same.answers == ("no",)
    assert crosswise(one, one, Relation.DIRECTOR, dice) is None


def test_yes_and_no_are_asked_for_alike() -> None:
    _, pages = opened(DIRECTOR, OTHER)
    both = tuple(pages.values())
    ledger = Ledger("set", 1000, set(), Random(0), wordings=1000)
    for number in range(20):
        ledger.joined(both, both, f"Are both alike, number {number}?", ("no",), "comparison")
    assert len(ledger.questions) == 3
    ledger.joined(both, both, "Are both tall?", ("yes",), "comparison")
    assert ledger.joined(both, both, "Are both small?", ("no",), "comparison")


def test_the_same_is_asked_again_only_in_other_words_and_when_allowed() -> None:
    _, pages = opened(DIRECTOR)
    ledger = Ledger("set", 1000, set(), Random(0))
    draft = Draft("When was Anna Pell born?", "12 March 1920", Kind.DATE, "told", "Anna Pell")
    page, again = pages["Anna Pell"], "On what date was Anna Pell born?"
    assert ledger.alone(page, draft.text, draft)
    assert not ledger.alone(page, again, draft)
    ledger.wordings = 2
    assert not ledger.alone(page, draft.text, draft)
    assert ledger.alone(page, again, draft)


def test_share_of_several_passages_is_kept_where_few_can_be_asked_alone() -> None:
    people = [
        (f"Ada P{chr(97 + n)}", f"Ada P{chr(97 + n)} (born {n + 1} May {1900 + n}) is a British chess player.")
        for n in range(20)
    ]
    made = make(corpus(*people), Terms(10_000, hops_share=0.4))
    hops = Counter(question.hops for question in made.questions)
    assert hops[1] == 20
    assert 10 <= hops[2] <= 15
    assert not [each for each in make(corpus(*people), Terms(100, hops_share=0.0)).questions if each.hops != 1]
