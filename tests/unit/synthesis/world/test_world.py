import json
import random
import re
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path

import bm25s
import pytest
import Stemmer

from sleuth.errors import ConfigError, InputError
from sleuth.synthesis.world.ask import Hop
from sleuth.synthesis.world.relations import RELATIONS
from sleuth.synthesis.world.world import MIXTURE, Posed, World

GOLDEN = Path(__file__).parent / "golden.json"


@pytest.fixture(scope="module")
def world() -> World:
    return World(2000, 0)


@pytest.fixture(scope="module")
def asked(world: World) -> dict[str, list[Posed]]:
    return {"train": list(world.pose("train", 2000)), "test": list(world.pose("test", 1000))}


def entities(posed: list[Posed]) -> set[str]:
    """Every subject and every value that is not a year."""
    hops = [hop for each in posed for hop in each.hops]
    values = {hop.value for hop in hops if RELATIONS[hop.relation].range}
    return values | {hop.subject for hop in hops}


def of_type(asked: dict[str, list[Posed]], name: str) -> list[Posed]:
    return [posed for posed in asked["train"] + asked["test"] if posed.question.type == name]


def stated(world: World, hop: Hop) -> bool:
    passage = world.passage(int(hop.passage_id))
    return passage.title == hop.subject and hop.value in passage.text


def test_the_first_passages_and_questions_of_a_seed_stay_what_they_are() -> None:
    world = World(2000, 7)
    found = {
        "passages": [passage.contents for passage in islice(world.passages(), 3)],
        "train": [posed.question.question for posed in world.pose("train", 3)],
        "test": [[posed.question.question, *posed.question.golden_answers] for posed in world.pose("test", 3)],
    }
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_equal_seeds_give_equal_worlds_and_others_do_not() -> None:
    one, same, other = World(500, 1), World(500, 1), World(500, 2)
    assert list(one.passages()) == list(same.passages())
    assert list(one.pose("train", 100)) == list(same.pose("train", 100))
    assert list(one.passages()) != list(other.passages())
    assert list(one.pose("train", 100)) != list(one.pose("train", 100, seed=1))


def test_fewer_questions_are_the_first_of_more(world: World, asked: dict[str, list[Posed]]) -> None:
    assert list(world.pose("test", 50)) == asked["test"][:50]


def test_passages_are_short_titled_and_numbered(world: World) -> None:
    passages = list(world.passages())
    assert [passage.id for passage in passages] == [str(row) for row in range(2000)]
    assert len({passage.title for passage in passages}) == len(world) == 2000
    for passage in passages:
        assert re.fullmatch(r'"\w+ \w+"\n.+\.', passage.contents)
        assert 1 <= passage.text.count(".") <= 4
        assert passage.title in passage.text.partition(".")[0]
    assert 25 <= sum(len(passage.contents.split()) for passage in passages) / 2000 <= 35


def test_rows_outside_the_world_are_refused(world: World) -> None:
    for row in (-1, 2000):
        with pytest.raises(IndexError):
            world.passage(row)


def test_train_and_test_questions_share_no_entity(asked: dict[str, list[Posed]]) -> None:
    assert len(entities(asked["train"])) > 1000
    assert len(entities(asked["test"])) > 400
    assert not entities(asked["train"]) & entities(asked["test"])


def test_every_gold_passage_states_the_gold_fact(world: World, asked: dict[str, list[Posed]]) -> None:
    for posed in asked["train"] + asked["test"]:
        assert posed.question.supporting_ids == tuple(hop.passage_id for hop in posed.hops)
        assert all(stated(world, hop) for hop in posed.hops)


def test_questions_differ_in_text_and_id(asked: dict[str, list[Posed]]) -> None:
    for posed in asked.values():
        assert len({each.question.question for each in posed}) == len(posed)
    assert len({each.question.id for posed in asked.values() for each in posed}) == 3000


def test_the_types_come_in_the_shares_of_the_mixture(world: World, asked: dict[str, list[Posed]]) -> None:
    found = Counter(posed.question.type for posed in asked["train"])
    assert found == {name: round(share * 2000) for name, share in MIXTURE.items()}
    only = [posed.question.type for posed in world.pose("test", 9, mixture={"one_hop": 2, "yes_no": 1})]
    assert Counter(only) == {"one_hop": 6, "yes_no": 3}


def test_hops_are_counted_by_type(asked: dict[str, list[Posed]]) -> None:
    hops = {"one_hop": 1, "two_hop": 2, "three_hop": 3, "comparison": 2, "yes_no": 2}
    for posed in asked["train"]:
        assert posed.question.hops == len(posed.hops) == hops[str(posed.question.type)]


@pytest.mark.parametrize("name", ["one_hop", "two_hop", "three_hop"])
def test_a_chain_leads_from_the_question_to_an_answer_not_in_it(asked: dict[str, list[Posed]], name: str) -> None:
    for posed in of_type(asked, name):
        text, answers = posed.question.question, posed.question.golden_answers
        chain = [posed.hops[0].subject, *(hop.value for hop in posed.hops)]
        assert [hop.subject for hop in posed.hops] == chain[:-1]
        assert len(set(chain)) == len(chain)
        assert chain[0] in text
        assert answers[0] == chain[-1]
        assert not any(answer in text for answer in answers)


def test_nested_questions_name_their_relations_from_the_outside_in(asked: dict[str, list[Posed]]) -> None:
    for posed in of_type(asked, "two_hop") + of_type(asked, "three_hop"):
        path = "".join(f"the {hop.noun} of " for hop in reversed(posed.hops))
        word = "Who" if RELATIONS[posed.hops[-1].relation].range == "person" else "What"
        assert posed.question.question == f"{word} is {path}{posed.hops[0].subject}?"


def test_one_hop_questions_come_in_each_phrasing(world: World) -> None:
    forms: set[tuple[str, str]] = set()
    for posed in world.pose("train", 2000, mixture={"one_hop": 1}):
        forms.add((posed.hops[0].relation, posed.question.question.replace(posed.hops[0].subject, "X")))
    assert Counter(relation for relation, _ in forms) == dict.fromkeys(RELATIONS, 3)


def test_nouns_belong_to_one_relation_each() -> None:
    nouns = [noun for relation in RELATIONS.values() for noun in relation.nouns]
    assert len(set(nouns)) == len(nouns) == 2 * len(RELATIONS)
    assert all(len(noun.split()) <= 2 for noun in nouns)


def test_comparisons_are_right_by_the_years_in_the_passages(world: World, asked: dict[str, list[Posed]]) -> None:
    places: Counter[int] = Counter()
    orders: Counter[bool] = Counter()
    for posed in of_type(asked, "comparison"):
        years = {hop.subject: int(hop.value) for hop in posed.hops}
        later = " later, " in posed.question.question
        right = max(years, key=years.__getitem__) if later else min(years, key=years.__getitem__)
        assert len(set(years.values())) == 2
        assert posed.question.golden_answers[0] == right
        assert posed.question.question.endswith(f"{posed.hops[0].subject} or {posed.hops[1].subject}?")
        places[list(years).index(right)] += 1
        orders[later] += 1
    assert places[0] == places[1]
    assert 0.4 < orders[True] / orders.total() < 0.6


def test_yes_and_no_alternate_and_are_right_by_the_passages(asked: dict[str, list[Posed]]) -> None:
    answers = []
    for posed in of_type(asked, "yes_no"):
        one, other = posed.hops
        assert one.subject != other.subject
        assert posed.question.golden_answers == (("yes",) if one.value == other.value else ("no",))
        answers.append(posed.question.golden_answers[0])
    assert answers == ["yes", "no"] * (len(answers) // 2)


def test_a_name_is_followed_by_its_other_form(asked: dict[str, list[Posed]]) -> None:
    for posed in of_type(asked, "one_hop"):
        name, *others = posed.question.golden_answers
        assert len(others) == (0 if name.isdigit() else 1)
        assert all(word in other for other in others for word in name.split())


def test_every_relation_is_asked_and_stated(asked: dict[str, list[Posed]]) -> None:
    assert {hop.relation for posed in asked["train"] for hop in posed.hops} == set(RELATIONS)
    assert {hop.relation for posed in asked["test"] for hop in posed.hops} == set(RELATIONS)


def test_a_search_for_a_name_finds_its_passage_first(world: World) -> None:
    passages, stemmer = list(world.passages()), Stemmer.Stemmer("english")
    index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    corpus = bm25s.tokenize([each.contents for each in passages], stopwords=[], stemmer=stemmer, show_progress=False)
    index.index(corpus, show_progress=False)
    names = bm25s.tokenize([each.title for each in passages], stopwords=[], stemmer=stemmer, show_progress=False)
    rows, _ = index.retrieve(names, k=3, show_progress=False)
    assert sum(int(found[0]) == row for row, found in enumerate(rows)) >= 0.998 * len(world)
    assert all(row in found for row, found in enumerate(rows))


def test_streaming_holds_no_more_for_more_passages() -> None:
    def peak(passages: int) -> int:
        world = World(100_000, 0)
        tracemalloc.start()
        for _ in islice(world.passages(), passages):
            pass
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    assert peak(10_000) < peak(1_000) + 10_000


def test_the_largest_world_gives_any_passage_at_once() -> None:
    world = World(1_000_000, 0)
    rows = random.Random(0).sample(range(1_000_000), 200)
    assert len({world.passage(row).title for row in rows}) == 200
    assert all(stated(world, hop) for posed in world.pose("test", 100) for hop in posed.hops)


def test_a_small_world_runs_out_of_questions_and_says_so() -> None:
    world = World(100, 0)
    with pytest.raises(InputError, match=r"a world of 100 passages gives \d+ different test questions .* larger world"):
        list(world.pose("test", 5000))


@pytest.mark.parametrize("passages", [0, 99, 1_000_001])
def test_sizes_outside_the_range_are_refused(passages: int) -> None:
    with pytest.raises(InputError, match="from 100 to 1000000"):
        World(passages, 0)


@pytest.mark.parametrize("mixture", [{}, {"four_hop": 1.0}, {"one_hop": -1.0, "two_hop": 2.0}, {"one_hop": 0.0}])
def test_a_mixture_that_makes_no_sense_is_refused(mixture: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="the mixture"):
        next(World(100, 0).pose("train", 1, mixture=mixture))
