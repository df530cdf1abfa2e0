import hashlib
import json
import random
import re
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import bm25s
import pytest
import Stemmer

from sleuth.config.data import QuestionType
from sleuth.corpus import questions
from sleuth.corpus.questions import TEST
from sleuth.errors import ConfigError, InputError
from sleuth.synthesis.world.schema import RELATIONS, SPLITS
from sleuth.synthesis.world.world import _TYPES, MIXTURE, Hop, World, WorldQuestion, write_world

GOLDEN = Path(__file__).parent / "golden.json"


@pytest.fixture(scope="module")
def world() -> World:
    return World(2000, 0)


@pytest.fixture(scope="module")
def asked(world: World) -> dict[str, list[WorldQuestion]]:
    return {"train": list(world.questions("train", 2000)), "test": list(world.questions("test", 1000))}


def entities(generated: list[WorldQuestion]) -> set[str]:
    """Every subject and every value that is not a year."""
    hops = [hop for each in generated for hop in each.hops]
    values = {hop.value for hop in hops if RELATIONS[hop.relation].range}
    return values | {hop.subject for hop in hops}


def of_type(asked: dict[str, list[WorldQuestion]], name: str) -> list[WorldQuestion]:
    return [generated for generated in asked["train"] + asked["test"] if generated.question.type == name]


def stated(world: World, hop: Hop) -> bool:
    passage = world.passage(int(hop.passage_id))
    return passage.title == hop.subject and hop.value in passage.text


def test_golden_passages_and_questions() -> None:
    world = World(2000, 7)
    found = {
        "passages": [passage.contents for passage in islice(world.passages(), 3)],
        "train": [generated.question.question for generated in world.questions("train", 3)],
        "test": [
            [generated.question.question, *generated.question.golden_answers]
            for generated in world.questions("test", 3)
        ],
    }
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_world_is_determined_by_its_seed() -> None:
    one, same, other = World(500, 1), World(500, 1), World(500, 2)
    assert list(one.passages()) == list(same.passages())
    assert list(one.questions("train", 100)) == list(same.questions("train", 100))
    assert list(one.passages()) != list(other.passages())
    assert list(one.questions("train", 100)) != list(one.questions("train", 100, seed=1))


def test_shorter_question_list_is_a_prefix(world: World, asked: dict[str, list[WorldQuestion]]) -> None:
    assert list(world.questions("test", 50)) == asked["test"][:50]


def test_passage_format(world: World) -> None:
    passages = list(world.passages())
    assert [passage.id for passage in passages] == [str(row) for row in range(2000)]
    assert len({passage.title for passage in passages}) == len(world) == 2000
    for passage in passages:
        assert re.fullmatch(r'"\w+ \w+"\n.+\.', passage.contents)
        assert 1 <= passage.text.count(".") <= 4
        assert passage.title in passage.text.partition(".")[0]
    assert 25 <= sum(len(passage.contents.split()) for passage in passages) / 2000 <= 35


def test_row_out_of_range(world: World) -> None:
    for row in (-1, 2000):
        with pytest.raises(IndexError):
            world.passage(row)


def test_splits_share_no_entity(asked: dict[str, list[WorldQuestion]]) -> None:
    assert len(entities(asked["train"])) > 1000
    assert len(entities(asked["test"])) > 400
    assert not entities(asked["train"]) & entities(asked["test"])


def test_gold_passages_state_the_gold_facts(world: World, asked: dict[str, list[WorldQuestion]]) -> None:
    for generated in asked["train"] + asked["test"]:
        assert generated.question.supporting_ids == tuple(hop.passage_id for hop in generated.hops)
        assert all(stated(world, hop) for hop in generated.hops)


def test_questions_are_unique(asked: dict[str, list[WorldQuestion]]) -> None:
    for generated in asked.values():
        assert len({each.question.question for each in generated}) == len(generated)
    assert len({each.question.id for generated in asked.values() for each in generated}) == 3000


def test_question_types_follow_the_mixture(world: World, asked: dict[str, list[WorldQuestion]]) -> None:
    found = Counter(generated.question.type for generated in asked["train"])
    assert found == {name: round(share * 2000) for name, share in MIXTURE.items()}
    only = [generated.question.type for generated in world.questions("test", 9, mixture={"one_hop": 2, "yes_no": 1})]
    assert Counter(only) == {"one_hop": 6, "yes_no": 3}


def test_settings_name_the_question_types_that_can_be_generated() -> None:
    assert list(get_args(QuestionType)) == list(_TYPES)


def test_four_hops_on_request(world: World) -> None:
    chains = list(world.questions("train", 50, mixture={"four_hop": 1}))
    assert all(each.question.type == "four_hop" and each.question.hops == len(each.hops) == 4 for each in chains)
    for each in chains:
        assert [hop.subject for hop in each.hops[1:]] == [hop.value for hop in each.hops[:-1]]


def test_mixture_of_a_world_folder_is_recorded(world: World, tmp_path: Path) -> None:
    write_world(world, tmp_path / "plain", 4, 4)
    manifest = write_world(world, tmp_path / "hard", 4, 4, mixture={"four_hop": 1.0, "comparison": 1.0})
    assert manifest["mixture"] == {"four_hop": 1.0, "comparison": 1.0}
    assert "mixture" not in json.loads((tmp_path / "plain" / "manifest.json").read_text())
    kinds = [json.loads(line)["type"] for line in (tmp_path / "hard" / TEST).read_text().splitlines()]
    assert sorted(kinds) == ["comparison", "comparison", "four_hop", "four_hop"]


def test_hop_count_of_each_type(asked: dict[str, list[WorldQuestion]]) -> None:
    hops = {"one_hop": 1, "two_hop": 2, "three_hop": 3, "comparison": 2, "yes_no": 2}
    for generated in asked["train"]:
        assert generated.question.hops == len(generated.hops) == hops[str(generated.question.type)]


@pytest.mark.parametrize("name", ["one_hop", "two_hop", "three_hop"])
def test_chain_leads_to_an_answer_absent_from_the_question(asked: dict[str, list[WorldQuestion]], name: str) -> None:
    for generated in of_type(asked, name):
        text, answers = generated.question.question, generated.question.golden_answers
        chain = [generated.hops[0].subject, *(hop.value for hop in generated.hops)]
        assert [hop.subject for hop in generated.hops] == chain[:-1]
        assert len(set(chain)) == len(chain)
        assert chain[0] in text
        assert answers[0] == chain[-1]
        assert not any(answer in text for answer in answers)


def test_multi_hop_question_text(asked: dict[str, list[WorldQuestion]]) -> None:
    for generated in of_type(asked, "two_hop") + of_type(asked, "three_hop"):
        path = "".join(f"the {hop.noun} of " for hop in reversed(generated.hops))
        word = "Who" if RELATIONS[generated.hops[-1].relation].range == "person" else "What"
        assert generated.question.question == f"{word} is {path}{generated.hops[0].subject}?"


def test_one_hop_questions_use_every_phrasing(world: World) -> None:
    forms: set[tuple[str, str]] = set()
    for generated in world.questions("train", 2000, mixture={"one_hop": 1}):
        forms.add((generated.hops[0].relation, generated.question.question.replace(generated.hops[0].subject, "X")))
    assert Counter(relation for relation, _ in forms) == dict.fromkeys(RELATIONS, 3)


def test_relation_nouns_are_unique() -> None:
    nouns = [noun for relation in RELATIONS.values() for noun in relation.nouns]
    assert len(set(nouns)) == len(nouns) == 2 * len(RELATIONS)
    assert all(len(noun.split()) <= 2 for noun in nouns)


def test_comparison_answers_follow_the_years(world: World, asked: dict[str, list[WorldQuestion]]) -> None:
    places: Counter[int] = Counter()
    orders: Counter[bool] = Counter()
    for generated in of_type(asked, "comparison"):
        years = {hop.subject: int(hop.value) for hop in generated.hops}
        later = " later, " in generated.question.question
        right = max(years, key=years.__getitem__) if later else min(years, key=years.__getitem__)
        assert len(set(years.values())) == 2
        assert generated.question.golden_answers[0] == right
        assert generated.question.question.endswith(f"{generated.hops[0].subject} or {generated.hops[1].subject}?")
        places[list(years).index(right)] += 1
        orders[later] += 1
    assert places[0] == places[1]
    assert 0.4 < orders[True] / orders.total() < 0.6


def test_yes_no_answers_alternate_and_are_correct(asked: dict[str, list[WorldQuestion]]) -> None:
    answers = []
    for generated in of_type(asked, "yes_no"):
        one, other = generated.hops
        assert one.subject != other.subject
        assert generated.question.golden_answers == (("yes",) if one.value == other.value else ("no",))
        answers.append(generated.question.golden_answers[0])
    assert answers == ["yes", "no"] * (len(answers) // 2)


def test_answers_include_an_alias(asked: dict[str, list[WorldQuestion]]) -> None:
    for generated in of_type(asked, "one_hop"):
        name, *others = generated.question.golden_answers
        assert len(others) == (0 if name.isdigit() else 1)
        assert all(word in other for other in others for word in name.split())


def test_every_relation_is_used(asked: dict[str, list[WorldQuestion]]) -> None:
    assert {hop.relation for generated in asked["train"] for hop in generated.hops} == set(RELATIONS)
    assert {hop.relation for generated in asked["test"] for hop in generated.hops} == set(RELATIONS)


def test_bm25_finds_a_passage_by_name(world: World) -> None:
    passages, stemmer = list(world.passages()), Stemmer.Stemmer("english")
    index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    corpus = bm25s.tokenize([each.contents for each in passages], stopwords=[], stemmer=stemmer, show_progress=False)
    index.index(corpus, show_progress=False)
    names = bm25s.tokenize([each.title for each in passages], stopwords=[], stemmer=stemmer, show_progress=False)
    rows, _ = index.retrieve(names, k=3, show_progress=False)
    assert sum(int(found[0]) == row for row, found in enumerate(rows)) >= 0.998 * len(world)
    assert all(row in found for row, found in enumerate(rows))


def test_streaming_uses_constant_memory() -> None:
    def peak(passages: int) -> int:
        world = World(100_000, 0)
        tracemalloc.start()
        for _ in islice(world.passages(), passages):
            pass
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    assert peak(10_000) < peak(1_000) + 10_000


def test_largest_world_has_random_access() -> None:
    world = World(1_000_000, 0)
    rows = random.Random(0).sample(range(1_000_000), 200)
    assert len({world.passage(row).title for row in rows}) == 200
    assert all(stated(world, hop) for generated in world.questions("test", 100) for hop in generated.hops)


def test_exhausted_questions_are_an_error() -> None:
    world = World(100, 0)
    with pytest.raises(InputError, match=r"100 passages .* test .* 5000"):
        list(world.questions("test", 5000))


@pytest.mark.parametrize("passages", [0, 99, 1_000_001])
def test_world_size_out_of_range(passages: int) -> None:
    with pytest.raises(InputError, match=rf"{passages} .*100 .*1000000"):
        World(passages, 0)


@pytest.mark.parametrize("mixture", [{}, {"five_hop": 1.0}, {"one_hop": -1.0, "two_hop": 2.0}, {"one_hop": 0.0}])
def test_invalid_mixture(mixture: dict[Any, float]) -> None:
    with pytest.raises(ConfigError, match="mixture"):
        next(World(100, 0).questions("train", 1, mixture=mixture))


def test_world_folder_contents(tmp_path: Path) -> None:
    world, folder = World(200, 3), tmp_path / "new" / "world"
    rows = 0

    def on_row() -> None:
        nonlocal rows
        rows += 1

    manifest = write_world(world, folder, train=60, test=20, on_row=on_row)
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    assert corpus == [{"id": passage.id, "contents": passage.contents} for passage in world.passages()]
    for split, count in zip(SPLITS, (60, 20), strict=True):
        expected = [each.question for each in world.questions(split, count)]
        assert questions.load(folder / f"questions.{split}.jsonl") == expected
    assert rows == 280
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["passages"], manifest["seed"]) == (1, 200, 3)
    for name, file in manifest["files"].items():
        assert file["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_world_folder_is_deterministic(tmp_path: Path) -> None:
    assert write_world(World(150, 1), tmp_path / "a", 30, 10) == write_world(World(150, 1), tmp_path / "b", 30, 10)


def test_existing_folder_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        write_world(World(100, 0), tmp_path, 10, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_failed_write_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="5000"):
        write_world(World(100, 0), tmp_path / "world", 10, 5000)
    assert list(tmp_path.iterdir()) == []
