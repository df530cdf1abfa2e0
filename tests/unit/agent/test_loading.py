"""What is evaluated: the model of a run or a folder, its settings as changed, and a stamp of all that matters."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent import methods
from sleuth.agent.loading import AgentOptions, AgentSpec, describe_agent, load_run_agent
from sleuth.config import recipe
from sleuth.config.engine import EngineConfig
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.evaluate.folder import flatten
from sleuth.model.policy import Policy, select_device
from sleuth.retrieval import index
from sleuth.runs.run import Run

QUESTION = {"id": "q1", "question": "Who?", "golden_answers": ["Ada"]}


@pytest.fixture
def home(tmp_path: Path, policy: Callable[..., Policy]) -> Path:
    """A folder with questions, an index, a model, and a run that trained another."""
    (tmp_path / "asked.jsonl").write_text(json.dumps(QUESTION) + "\n")
    (tmp_path / "corpus.jsonl").write_text('{"id": "p", "contents": "\\"Ada\\"\\nAda wrote it."}\n')
    index.build(tmp_path / "corpus.jsonl", tmp_path / "index")
    policy(0).save(tmp_path / "model")
    config = recipe.compose(
        {
            "model": {"policy": str(tmp_path / "model")},
            "data": {"train": str(tmp_path / "asked.jsonl"), "test": str(tmp_path / "asked.jsonl")},
            "retrieval": {"index": str(tmp_path / "index"), "k": 2},
            "agent": {"prompt": "brief", "searches": 3, "observation_tokens": 60, "context_tokens": 300},
        }
    )
    run = Run.create(tmp_path / "run", {"config": recipe.resolved(config), "inputs": {}})
    policy(1).save(run.checkpoint(4))
    return tmp_path


def candidate(home: Path, name: str, *settings: str, **wish: Any) -> AgentSpec:
    return describe_agent(str(home / name), AgentOptions(settings, **wish), home / "asked.jsonl")


def test_a_run_is_its_newest_checkpoint_with_its_own_settings(home: Path) -> None:
    found = candidate(home, "run")
    assert (found.name, found.weights.name, found.index) == ("run", "step-4", home / "index")
    assert (found.config.agent.template, found.config.agent.searches, found.config.retrieval.k) == ("brief", 3, 2)
    assert found.questions == (home / "asked.jsonl",)
    before = candidate(home, "run", before=True)
    assert (before.name, before.weights) == ("run before training", home / "model")


def test_a_run_with_another_method_keeps_what_still_has_a_meaning(home: Path) -> None:
    rag = candidate(home, "run", method="rag").config
    assert (rag.agent.method, rag.agent.template, rag.agent.observation_tokens, rag.retrieval.k) == (
        "rag",
        "rag",
        60,
        2,
    )
    direct = candidate(home, "run", "agent.turn_tokens=9", method="direct").config
    assert (direct.agent.template, direct.agent.turn_tokens, direct.retrieval.index) == ("direct", 9, None)


@pytest.mark.parametrize("setting", ["agent.method=search", "agent.method = search", "agent.method=import:own.method"])
def test_a_method_without_a_prompt_of_its_own_leaves_the_runs(
    home: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = candidate(home, "run", setting)
    assert (found.config.agent.template, found.config.agent.searches, found.notes) == ("brief", 3, ())


def test_another_prompt_than_the_runs_is_noted(home: Path) -> None:
    for found in (candidate(home, "run", method="rag"), candidate(home, "run", "agent.method = 'rag'")):
        assert found.config.agent.template == "rag"
        assert found.notes == ("The prompt is 'rag'; the run was trained with 'brief'.",)
    assert candidate(home, "run", "agent.prompt=instruct").notes == (
        "The prompt is 'instruct'; the run was trained with 'brief'.",
    )
    assert candidate(home, "run").notes == candidate(home, "model", index=str(home / "index")).notes == ()


TRAINED_AT = {"kind": "vllm", "url": "http://127.0.0.1:9", "in_flight": "abort", "exchange": "w", "slots": 7}
TRAINED_BY = {"kind": "vllm", "command": "env/vllm serve", "memory": 0.5, "weights": "device"}


@pytest.mark.parametrize(
    ("trained", "settings", "expected"),
    [
        (TRAINED_AT, (), {"kind": "vllm", "slots": 7}),
        (TRAINED_AT, ("engine.url=http://b:1",), {"kind": "vllm", "slots": 7, "url": "http://b:1"}),
        (TRAINED_AT, ("engine.memory=0.8",), {"kind": "vllm", "slots": 7, "memory": 0.8}),
        (TRAINED_BY, (), {"kind": "vllm", "command": "env/vllm serve", "memory": 0.5}),
        (TRAINED_BY, ("engine.url=http://b:1",), {"kind": "vllm", "url": "http://b:1"}),
        (TRAINED_BY, ("engine.kind=paged",), {"memory": 0.5}),
    ],
)
def test_a_run_is_not_asked_at_the_servers_it_was_trained_with(
    home: Path, trained: dict[str, Any], settings: tuple[str, ...], expected: dict[str, Any]
) -> None:
    manifest = home / "run" / "manifest.json"
    begun = json.loads(manifest.read_text())
    begun["config"]["engine"] |= trained
    manifest.write_text(json.dumps(begun))
    found = candidate(home, "run", *settings)
    assert found.config.engine == EngineConfig(**expected)
    assert found.stamp()["model"]["on"] == ("vllm" if "kind" in expected else select_device().type)
    # A single question is answered here.
    assert isinstance(load_run_agent(Run.open(home / "run")).engine, PagedEngine)


def test_a_model_with_an_index_is_a_candidate(home: Path) -> None:
    found = candidate(home, "model", "agent.method=rag", "retrieval.k=1", index=str(home / "index"))
    assert (found.name, found.config.agent.method, found.config.retrieval.k) == ("model", "rag", 1)
    assert candidate(home, "model", method="cot").stamp()["search"] is None


def test_an_agent_is_ready_to_ask(home: Path) -> None:
    agent = candidate(home, "run", "engine.slots=2", method="rag").load()
    assert agent.config.method == "rag"
    assert agent.tools.k == 2


OWN_PROTOCOL = "agent.protocol=import:own_tags.tags"
OWN_TAGS = """
from sleuth.agent.tags import Tags

def tags(tokens):
    return Tags()
"""


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({}, set()),
        ({"settings": ("engine.slots=7",)}, set()),
        ({"settings": ("agent.searches=1",)}, {"limits.searches"}),
        ({"settings": ("retrieval.k=1",)}, {"search.k"}),
        ({"settings": ("agent.prompt=instruct",)}, {"prompt.name", "prompt.sha256"}),
        ({"before": True}, {"model.sha256"}),
        ({"settings": (OWN_PROTOCOL,)}, {"protocol.name", "imported", "imported.protocol"}),
    ],
    ids=["nothing", "slots", "searches", "k", "prompt", "weights", "protocol"],
)
def test_stamp_changes_with_everything_that_answers_depend_on(
    home: Path, changed: dict[str, Any], differs: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "own_tags.py").write_text(OWN_TAGS)
    monkeypatch.syspath_prepend(str(home))
    first = flatten(candidate(home, "run").stamp())
    settings = changed.pop("settings", ())
    second = flatten(candidate(home, "run", *settings, **changed).stamp())
    assert {name for name in first | second if first.get(name, "") != second.get(name, "")} == differs
    assert (len(first["search.index"]), first["search.by"]) == (64, "contents")


MODULE = """
from sleuth.agent.tags import Tags

INSTRUCTION = "Search."

class Own(Tags):
    instruction = INSTRUCTION

def spoken(tokens):
    return Own()

async def answered(agent, task, session, hear):
    raise NotImplementedError

def search(queries, k):
    return [[] for _ in queries]
"""


@pytest.mark.parametrize("knob", ["agent.protocol=import:{}.spoken", "agent.method=import:{}.answered"])
def test_the_stamp_holds_the_source_of_what_is_imported(home: Path, monkeypatch: pytest.MonkeyPatch, knob: str) -> None:
    monkeypatch.syspath_prepend(str(home))
    place = knob.partition("=")[0].removeprefix("agent.")
    name = f"mine_{place}"
    (home / f"{name}.py").write_text(MODULE)
    first = flatten(candidate(home, "run", knob.format(name)).stamp())
    assert len(first[f"imported.{place}"]) == 64
    (home / f"{name}.py").write_text(f"{MODULE}\n# another")
    second = flatten(candidate(home, "run", knob.format(name)).stamp())
    assert {each for each in first if first[each] != second[each]} == {f"imported.{place}"}


def test_the_stamp_holds_what_a_protocol_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is told may come from elsewhere than its module."""
    monkeypatch.syspath_prepend(str(home))
    (home / "mine_told.py").write_text(
        MODULE.replace('"Search."', '__import__("pathlib").Path("told.txt").read_text()')
    )
    monkeypatch.chdir(home)
    told = []
    for text in ("Search.", "Search twice."):
        (home / "told.txt").write_text(text)
        sys.modules.pop("mine_told", None)
        told.append(flatten(candidate(home, "run", "agent.protocol=import:mine_told.spoken").stamp()))
    assert {each for each in told[0] if told[0][each] != told[1][each]} == {"protocol.sha256"}


def test_stamp_includes_pages_and_web_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "pages.jsonl").write_text('{"url": "a", "contents": "b"}\n')
    setting = f"retrieval.pages={home / 'pages.jsonl'}"
    (home / "own_tags.py").write_text(OWN_TAGS)
    monkeypatch.syspath_prepend(str(home))
    first = candidate(home, "run", OWN_PROTOCOL, setting).stamp()["search"]
    (home / "pages.jsonl").write_text('{"url": "a", "contents": "c"}\n')
    second = candidate(home, "run", OWN_PROTOCOL, setting).stamp()["search"]
    assert {each for each in first if first[each] != second[each]} == {"pages"}
    web = candidate(home, "run", "retrieval.service.language=de", index="web:serper").stamp()["search"]
    assert (web["index"], web["by"]) == ("web:serper", "name")
    assert web["web"] == {"language": "de", "country": None, "pages": False}
    (home / "mine_shelf.py").write_text(MODULE)
    with pytest.raises(InputError, match="does not answer"):
        candidate(home, "run", "retrieval.service.deadline=0.2", index="http://127.0.0.1:1").stamp()
    own = candidate(home, "run", index="import:mine_shelf.search").stamp()
    assert (own["search"]["by"], len(own["imported"]["index"])) == ("name", 64)


@pytest.mark.parametrize(
    ("name", "settings", "wish", "sentence"),
    [
        ("model", (), {}, "model .*--index"),
        ("model", (), {"method": "rag"}, "model .*--index"),
        ("model", (), {"method": "direct", "index": "index"}, "--index has no effect with the method direct"),
        ("model", (), {"method": "cot", "before": True}, "--before"),
        ("model", ("agent.searches=2",), {"method": "direct"}, "searches has no effect with agent.method = direct"),
        ("run", ("train.steps=3",), {}, "--set train.steps=3 has no effect here"),
        ("index", (), {}, "index is not a run folder"),
        ("nowhere", (), {"index": "index"}, "no model folder at"),
    ],
)
def test_bad_wishes_are_one_sentence(
    home: Path, name: str, settings: tuple[str, ...], wish: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        candidate(home, name, *settings, **wish)


def test_a_model_without_a_tokenizer_or_questions_is_refused(home: Path) -> None:
    with pytest.raises(InputError, match=r"model is a model without questions.*--suite"):
        describe_agent(str(home / "model"), AgentOptions(method="direct"), None)
    (home / "model" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        candidate(home, "model", method="direct")


def test_an_address_has_no_weights() -> None:
    with pytest.raises(ConfigError, match=r"http://host/v1 is a.* address"):
        describe_agent("http://host/v1", AgentOptions(), None)


def test_a_setting_without_a_value_is_taken_out() -> None:
    kept = recipe.load("quickstart", ["agent.method=rag"])
    with pytest.raises(ConfigError, match=r"'brief' has no {documents}.*--set agent\.prompt=rag"):
        methods.make_method(kept.agent)
    config = recipe.load("quickstart", ["agent.method=rag", "agent.prompt="])
    assert (config.agent.method, config.agent.template) == ("rag", "rag")
