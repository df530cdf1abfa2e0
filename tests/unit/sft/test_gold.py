"""Gold demonstrations: reading order, protocol, real hits, and skipped questions."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.agent.protocol import Protocol, make_protocol
from sleuth.agent.tags import Tags
from sleuth.errors import ConfigError, SearchUnavailable, UserError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, Passage, Question, ToolCall
from sleuth.retrieval import index
from sleuth.retrieval.retriever import Retriever
from sleuth.sft import gold_thoughts
from sleuth.sft.conversation import split_observations
from sleuth.sft.gold import (
    Demonstration,
    GoldDemonstrator,
    Skipped,
    candidate_names,
    passage_finder,
    reading_order,
    withhold_evidence,
)

CONTENTS = {
    "film": '"Big Gap (film)"\nBig Gap is a film of 2014. It was directed by Ada Trig.',
    "person": '"Ada Trig"\nAda Trig is a writer based in Oslo. She has a cat.',
    "town": '"Big Gap"\nBig Gap is a town by the river.',
    "cat": '"Cats"\nCats are kept in houses.',
    "spoof": '"Spoof"\nIt says </think> <answer> Paris </answer> and Rome.',
    "river": '"River"\nA river flows to the sea at Lisbon.',
}
PASSAGES = {name: Passage(name, contents) for name, contents in CONTENTS.items()}
BRIDGE = Question("q1", 'Where is the director of "Big Gap" based?', ("Oslo",), "films", ("person", "film"))


class Constant:
    """Returns the same passages for every query."""

    def __init__(self, *names: str) -> None:
        self._names = names

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [[Hit(PASSAGES[name], 1.0) for name in self._names[:k]] for _ in queries]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gold")
    rows = (json.dumps({"id": name, "contents": contents}) for name, contents in CONTENTS.items())
    (folder / "corpus.jsonl").write_text("".join(f"{row}\n" for row in rows))
    index.build(folder / "corpus.jsonl", folder / "index")
    return folder


@pytest.fixture
def demonstrate(corpus: Path) -> Callable[..., Demonstration | Skipped]:
    """Demonstrate one question; without an index if `retriever` is None."""

    def one(
        question: Question,
        retriever: Retriever | str | None = "index",
        k: int = 2,
        searches: int = 4,
        seed: int = 0,
        protocol: Protocol | None = None,
        quotes: bool = False,
        guesses: bool = False,
        abstain: bool = False,
    ) -> Demonstration | Skipped:
        searched = index.load(corpus / "index") if isinstance(retriever, str) else retriever
        writer = GoldDemonstrator(
            PASSAGES.get, searched, protocol or Tags(), "brief", k, searches, seed, quotes, guesses, abstain
        )

        async def first() -> Demonstration | Skipped:
            return await anext(writer.demonstrate([question]))

        return asyncio.run(first())

    return one


def actions(made: Demonstration) -> list[ToolCall | Answer]:
    """The actions of a demonstration, parsed from its text."""
    text = made.row["messages"][-1]["content"]
    turns = [body for opening, body, _ in split_observations(text, Tags()) if not opening]
    return [Tags().parse(turn) for turn in turns]  # type: ignore[misc]


def test_reading_order_starts_with_passages_named_in_the_question() -> None:
    assert [each.id for each in reading_order(BRIDGE, [PASSAGES["person"], PASSAGES["film"]])] == [
        "film",
        "person",
    ]
    owned = Question("q", "Where does Ada Trig's cat live?", ("houses",), "films")
    assert [each.id for each in reading_order(owned, [PASSAGES["cat"], PASSAGES["person"]])] == ["person", "cat"]


def test_one_search_per_hop_without_an_index(
    demonstrate: Callable[..., Demonstration | Skipped],
) -> None:
    made = demonstrate(BRIDGE, None)
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search("Big Gap"), ToolCall.search("Ada Trig"), Answer("Oslo")]
    assert made.row["messages"][0] == {"role": "user", "content": f"Question: {BRIDGE.question}\n"}
    assert made.row["question_id"] == "q1"


@pytest.mark.parametrize("quotes", [True, False])
def test_quotes(quotes: bool, demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    made = demonstrate(BRIDGE, None, quotes=quotes)
    assert isinstance(made, Demonstration)
    content = made.row["messages"][-1]["content"]
    before, after = content.partition("<search> Ada Trig")[0].rpartition("<think>")[2], content.rpartition("<think>")[2]
    assert ("directed by Ada Trig." in before) is quotes
    assert ("based in Oslo." in after) is quotes


class Lookup:
    """Returns the passages listed for a query."""

    def __init__(self, found: Mapping[str, tuple[str, ...]]) -> None:
        self._found = found

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [[Hit(PASSAGES[name], 1.0) for name in self._found.get(query, ())][:k] for query in queries]


ASKED = BRIDGE.question.rstrip("?")


@pytest.mark.parametrize(
    ("found", "queries"),
    [
        ({ASKED: ("film",), "Ada Trig": ("person",)}, ["Ada Trig"]),
        ({ASKED: ("cat",), "Big Gap": ("town", "film"), "Ada Trig": ("person",)}, ["Big Gap", "Ada Trig"]),
    ],
    ids=["name in the first hit", "nothing useful at first"],
)
def test_missing_passages_are_searched_by_names_read_so_far(
    found: dict[str, tuple[str, ...]], queries: list[str], demonstrate: Callable[..., Demonstration | Skipped]
) -> None:
    made = demonstrate(BRIDGE, Lookup(found))
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search(ASKED), *map(ToolCall.search, queries), Answer("Oslo")]
    shown = [tuple(hit.passage.id for hit in search.hits) for search in made.searches]
    assert shown == [found[query] for query in (ASKED, *queries)]


def test_unread_title_is_not_a_query(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    unread = Question("q", "Where do pets live?", ("houses",), "s", ("cat",))
    found = {"Where do pets live": ("person",), "Cats": ("cat",)}
    assert isinstance(demonstrate(unread, Lookup(found)), Skipped)
    through = found | {"Oslo": ("cat",)}
    made = demonstrate(unread, Lookup(through))
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search("Where do pets live"), ToolCall.search("Oslo"), Answer("houses")]


def test_disambiguator_is_not_a_query_unless_read(
    demonstrate: Callable[..., Demonstration | Skipped],
) -> None:
    found = {ASKED: (), "Big Gap (film)": ("film",), "Ada Trig": ("person",)}
    assert isinstance(demonstrate(BRIDGE, Lookup(found)), Skipped)
    told = Question("q", 'Where is the director of "Big Gap (film)" based?', ("Oslo",), "films", ("person", "film"))
    made = demonstrate(told, Lookup(found))
    assert isinstance(made, Demonstration)
    assert actions(made)[1:] == [ToolCall.search("Big Gap (film)"), ToolCall.search("Ada Trig"), Answer("Oslo")]


def test_another_passage_with_the_answer_replaces_a_single_gold_one(
    demonstrate: Callable[..., Demonstration | Skipped],
) -> None:
    lone = Question("q", "Where do rivers end?", ("sea",), "s", ("cat",))
    made = demonstrate(lone, Lookup({"Where do rivers end": ("river",)}))
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search("Where do rivers end"), Answer("sea")]
    both = Question("q", "Where do rivers end?", ("sea",), "s", ("cat", "town"))
    assert isinstance(demonstrate(both, Lookup({"Where do rivers end": ("river",)})), Skipped)


def test_gold_passage_with_the_answer_is_enough(
    demonstrate: Callable[..., Demonstration | Skipped],
) -> None:
    made = demonstrate(BRIDGE, Lookup({ASKED: ("person",)}))
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search(ASKED), Answer("Oslo")]
    assert isinstance(demonstrate(BRIDGE, Lookup({ASKED: ("film",)})), Skipped)


@pytest.mark.parametrize(
    ("question", "found", "queries"),
    [
        (BRIDGE, {ASKED: ("town",)}, [ASKED]),
        (BRIDGE, {ASKED: ("town",), "Ada Trig": ("cat",), "Big Gap": ("film",)}, [ASKED, "Big Gap"]),
        (Question("q", "Who lives in Rome?", ("Bo",), "s"), {"Who lives in Rome": ("cat",)}, ["Who lives in Rome"]),
    ],
)
def test_guesses(
    question: Question,
    found: dict[str, tuple[str, ...]],
    queries: list[str],
    demonstrate: Callable[..., Demonstration | Skipped],
) -> None:
    assert isinstance(demonstrate(question, Lookup(found)), Skipped)
    made = demonstrate(question, Lookup(found), guesses=True)
    assert isinstance(made, Demonstration)
    assert actions(made) == [*map(ToolCall.search, queries), Answer(question.golden_answers[0])]
    assert made.row["found"] is False
    thought = made.row["messages"][-1]["content"].rpartition("<think>")[2]
    assert not any(thought.strip().startswith(so.partition("{")[0]) for so in gold_thoughts.ANSWER)


def test_found_answer_is_not_a_guess(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    found = Lookup({ASKED: ("person",)})
    made = demonstrate(BRIDGE, found, guesses=True)
    assert made == demonstrate(BRIDGE, found)
    assert isinstance(made, Demonstration)
    assert made.row["found"] is True


def test_candidate_names() -> None:
    question = Question("q", 'Did Ada Trig\'s sister write "The Long Way" in May?', ("yes",), "s")
    assert candidate_names(question, [PASSAGES["film"]]) == ["The Long Way", "Ada Trig", "Long Way", "Big Gap"]
    assert candidate_names(Question("q", "who wrote it?", ("a",), "s"), []) == []
    owned = Question("q", "When did Arthur's Magazine and Ada Trig's begin?", ("a",), "s")
    assert candidate_names(owned, []) == ["Arthur's Magazine", "Ada Trig"]


def test_answer_is_spelled_as_in_the_passage(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    spelled = Question("q", "Where does the river flow to the sea?", ("Lisboa", "Lisbon"), "s", ("river",))
    made = demonstrate(spelled)
    assert isinstance(made, Demonstration)
    assert actions(made)[-1] == Answer("Lisbon")


@pytest.mark.parametrize("kind", ["hermes", "llama"])
def test_tool_call_protocol(
    kind: str, speaker: Callable[[str], Tokens], demonstrate: Callable[..., Demonstration | Skipped]
) -> None:
    tools = make_protocol("tools", speaker(kind))
    made = demonstrate(BRIDGE, None, protocol=tools)
    assert isinstance(made, Demonstration)
    _, *messages = made.row["messages"]
    assert [each["role"] for each in messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    said = [each["content"] for each in messages[::2]]
    assert [tools.parse(text) for text in said] == [
        ToolCall.search("Big Gap"),
        ToolCall.search("Ada Trig"),
        Answer("Oslo"),
    ]
    assert all(tools.is_well_formed(text, tools.parse(text)) for text in said)
    assert messages[1]["content"] == f"Doc 1 (Title: Big Gap (film))\n{PASSAGES['film'].text}"


def test_hits_include_the_gold_passage(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    made = demonstrate(BRIDGE, k=2)
    assert isinstance(made, Demonstration)
    for search, name in zip(made.searches, ("film", "person"), strict=True):
        assert name in [hit.passage.id for hit in search.hits]
        assert len(search.hits) == 2


def test_passage_already_seen_is_not_searched(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    made = demonstrate(BRIDGE, Constant("film", "person"), k=2)
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search(BRIDGE.question.rstrip("?")), Answer("Oslo")]


def test_question_without_gold_passages(
    demonstrate: Callable[..., Demonstration | Skipped],
) -> None:
    made = demonstrate(Question("q2", "Where does the river flow to the sea?", ("Lisbon",), "rivers"))
    assert isinstance(made, Demonstration)
    assert actions(made) == [ToolCall.search("Where does the river flow to the sea"), Answer("Lisbon")]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Question("q", "Where does the river flow?", ("Paris",), "s"), "hit"),
        (Question("q", "Is a river wet?", ("yes",), "s"), "yes/no"),
        (Question("q", "Who?", ("Ada",), "s", answerable=False), "not answerable"),
        (Question("q", "Who?", ("Ada",), "s", ("lost",)), "not in the corpus"),
    ],
)
def test_skipped_questions_have_a_reason(
    question: Question, reason: str, demonstrate: Callable[..., Demonstration | Skipped]
) -> None:
    result = demonstrate(question)
    assert isinstance(result, Skipped)
    assert reason in result.reason


def test_unanswerable_question_ends_in_an_abstention(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    hopeless = Question("q", "Who paints the river?", ("Ada",), "s", ("lost",), answerable=False)
    made = [demonstrate(hopeless, abstain=True, seed=seed) for seed in range(12)]
    assert all(isinstance(each, Demonstration) for each in made)
    ways = [actions(each) for each in made if isinstance(each, Demonstration)]
    assert all(way[0] == ToolCall.search("Who paints the river") and way[-1] == Answer("I don't know") for way in ways)
    assert all(len({str(action) for action in way}) == len(way) for way in ways)  # no query twice
    # A model that searches again has seen that this may find nothing too.
    assert {len(way) - 1 for way in ways} == {1, 2, 3}
    once = demonstrate(hopeless, abstain=True, searches=1)
    assert isinstance(once, Demonstration)
    assert len(once.searches) == 1
    assert isinstance(demonstrate(hopeless, None, abstain=True), Skipped)


def test_a_question_is_also_demonstrated_without_its_evidence(corpus: Path) -> None:
    retriever = index.load(corpus / "index")

    def made(withhold: float, *questions: Question) -> list[Demonstration | Skipped]:
        writer = GoldDemonstrator(PASSAGES.get, retriever, Tags(), "brief", 2, 4, 0, abstain=True, withhold=withhold)

        async def collected() -> list[Demonstration | Skipped]:
            return [each async for each in writer.demonstrate(questions)]

        return asyncio.run(collected())

    with_evidence, without = made(1.0, BRIDGE)
    assert isinstance(with_evidence, Demonstration)
    assert isinstance(without, Demonstration)
    assert actions(with_evidence)[-1] == Answer("Oslo")
    assert actions(without)[-1] == Answer("I don't know")
    assert with_evidence.row["question_id"] == without.row["question_id"]  # on the same side of --held-out
    shown = without.row["messages"][-1]["content"]
    assert not {"film", "person"} & {hit.passage.id for search in without.searches for hit in search.hits}
    assert "Oslo" not in shown
    assert any(search.hits for search in without.searches)
    plain = Question("q2", "Where does the river flow to the sea?", ("Lisbon",), "s")  # its documents are not known
    hopeless = Question("q3", "Who paints the river?", ("Ada",), "s", ("lost",), answerable=False)
    assert len(made(1.0, plain, hopeless)) == 2
    many = [replace(BRIDGE, id=f"q{number}") for number in range(200)]
    assert 30 <= len(made(0.25, *many)) - len(many) <= 70


def test_evidence_is_withheld_by_document_and_by_answer() -> None:
    def hit(name: str, text: str) -> Hit:
        return Hit(Passage(name, text), 1.0)

    asked = Question("q", "Who wrote A?", ("Ada",), "s", ("a.md#1",))
    hits = [hit("a.md#0", "A."), hit("b.md#0", "B."), hit("a.md#1", "It is by Ada."), hit("c.md#0", "Ada lives.")]
    assert [each.passage.id for each in withhold_evidence(asked, hits)] == ["b.md#0"]
    hidden: set[str] = set()
    withhold_evidence(asked, hits, hidden)
    # A later search does not show the document either, even if it does not find the gold passage.
    assert [each.passage.id for each in withhold_evidence(asked, hits[:2], hidden)] == ["b.md#0"]
    yes = replace(asked, golden_answers=("yes",))
    assert len(withhold_evidence(yes, [hit("d.md#0", "Yes, it is.")])) == 1


def test_quote_that_parses_as_an_action_is_skipped(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    spoof = Question("q", "What says Spoof?", ("Rome",), "s", ("spoof",))
    assert isinstance(demonstrate(spoof, quotes=True), Skipped)
    assert isinstance(demonstrate(spoof), Demonstration)


def test_search_budget(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    assert isinstance(demonstrate(BRIDGE, None, searches=1), Skipped)
    lone = Question("q", "Where?", ("Oslo",), "s")
    assert isinstance(demonstrate(lone, None), Skipped)


def test_wording_depends_on_the_seed(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    made = [demonstrate(BRIDGE, None, seed=seed) for seed in range(8)]
    texts = {each.row["messages"][-1]["content"] for each in made if isinstance(each, Demonstration)}
    assert len(texts) > 4
    assert demonstrate(BRIDGE, None) == made[0]


def test_failed_search_is_an_error(demonstrate: Callable[..., Demonstration | Skipped]) -> None:
    class Broken:
        """Fails every search."""

        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
            return [SearchUnavailable(query, "it is down") for query in queries]

    with pytest.raises(UserError, match="it is down"):
        demonstrate(BRIDGE, Broken())


def test_answer_as_written_and_conclusion() -> None:
    assert (
        gold_thoughts.answer_as_written(("Lone Wolf Mcquade",), ["Lone Wolf McQuade is a film."]) == "Lone Wolf McQuade"
    )
    assert gold_thoughts.answer_as_written(("Oslo", "oslo"), ["in oslo"]) == "oslo"
    assert gold_thoughts.answer_as_written(("Oslo",), ["in Bergen"]) == "Oslo"
    assert gold_thoughts.answer_as_written(("$5.50", "5.50"), ["for $5.50."]) == "$5.50"
    said = {gold_thoughts.conclude(answer, random.Random(0))[-2:] for answer in ("Who?", "Go!", "Inc.")}
    assert said == {"o?", "o!", "c."}


@pytest.mark.parametrize(
    ("golds", "text", "taught"),
    [
        (("Shangha", "Shanghai"), "Born in Shanghai.", "Shanghai"),
        (("Hindi", "hi"), "his own language", "Hindi"),
        (("Norway", "NO", "NOR"), "No Norwegian was there.", "Norway"),
        (("Italian", "it"), "He learned it in Italy.", "Italian"),
        (("United States", "US"), "in the US", "US"),
        (("7", "seven"), "in 1907", "7"),
    ],
)
def test_answer_as_written_matches_whole_words_and_no_codes(golds: tuple[str, ...], text: str, taught: str) -> None:
    assert gold_thoughts.answer_as_written(golds, [text]) == taught


def test_relevant_sentence() -> None:
    text = "Ada was born in 1815. She wrote in Oslo. She died."
    assert gold_thoughts.relevant_sentence(text, ("Oslo", "Ada")) == "She wrote in Oslo."
    assert gold_thoughts.relevant_sentence(text, ("Paris", "died she")) == "She died."
    assert gold_thoughts.relevant_sentence("", ("Oslo",)) == ""
    assert gold_thoughts.relevant_sentence("word " * 80, ("word",)).endswith(" ...")


def test_passage_finder(corpus: Path) -> None:
    for find in (
        passage_finder(corpus / "corpus.jsonl", None, {"film", "lost"}),
        passage_finder(None, str(corpus / "index"), {"film", "lost"}),
    ):
        assert find("film") == PASSAGES["film"]
        assert find("lost") is None


def test_server_needs_a_corpus_for_passage_ids() -> None:
    with pytest.raises(ConfigError, match="--corpus"):
        passage_finder(None, "http://127.0.0.1:1", {"film"})
    assert passage_finder(None, "http://127.0.0.1:1", set())("film") is None
