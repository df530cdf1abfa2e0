"""The knobs of search and training: each that another makes meaningless is refused, and all others go together."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sleuth.config.algorithm import AlgorithmConfig
from sleuth.config.recipe import resolved, restore, with_absolute_paths
from sleuth.config.retrieval import RetrievalConfig, ServiceConfig
from sleuth.config.tree import Config

Knobs = dict[str, Any]

OF_FUNCTIONS = ("concurrency", "deadline")  # settings of a service that hold for a search function too
FOLDER, SERVER, WEB, FUNCTION = "indexes/wiki", "http://127.0.0.1:8000", "web:serper", "import:mine.search"
BUILT = {"kind": "bm25", "k1": 0.9, "b": 0.4, "stemmer": "english", "encoder": "minilm"}
RERANKED = {"rerank": "cross", "rerank_depth": 20}
SERVICE: Knobs = {"concurrency": 1, "rate": 1.0, "deadline": 1.0, "token_env": "T", "proxy": "http://p:1"}
OF_THE_WEB: Knobs = {"language": "en", "country": "us", "pages": True}


def facts(sentence: str) -> list[str]:
    """The setting, names and values in a message: what a test may rely on, unlike its wording."""
    return [sentence.split()[0], *re.findall(r"[\w.-]*[._\d][\w.-]*\w", sentence)]


def refusals() -> list[tuple[Knobs, str]]:
    """Knobs that do not go together, and how that is said."""
    found: list[tuple[Knobs, str]] = []
    for index in (FOLDER, SERVER, WEB, FUNCTION):
        found += [
            ({"index": index, name: value}, f"{name} has no effect with retrieval.index")
            for name, value in BUILT.items()
        ]
    found += [({"kind": "bm25", "encoder": "e5"}, "encoder has no effect with retrieval.kind = bm25")]
    found += [({"device": "cpu"}, "device has no effect with retrieval.kind = bm25")]
    for kind in ("dense", "ann"):
        found += [
            ({"kind": kind, name: BUILT[name]}, f"{name} has no effect with retrieval.kind = {kind}")
            for name in ("k1", "b", "stemmer")
        ]
    for index in (SERVER, WEB, FUNCTION):
        found += [
            ({"index": index, name: value}, f"{name} has no effect with retrieval.index = {index}")
            for name, value in {"device": "cpu", **RERANKED}.items()
        ]
    found += [({"rerank_depth": 5}, "rerank_depth has no effect with no retrieval.rerank")]
    searching = {"device": "cpu", "rerank": "cross", "cache": 5, "record": True}
    found += [
        ({"replay": "f", "index": FOLDER, name: value}, f"{name} has no effect with retrieval.replay")
        for name, value in searching.items()
    ]
    found += [
        ({"replay": "f", name: value}, f"{name} has no effect with retrieval.replay") for name, value in BUILT.items()
    ]
    for name, value in (SERVICE | OF_THE_WEB).items():
        service = {"service": {name: value}}
        found += [(service, f"service.{name} has no effect with")]
        found += [
            ({"index": index, **service}, f"service.{name} has no effect with retrieval.index = {index}")
            for index in (FOLDER, *([] if name in OF_FUNCTIONS else [FUNCTION]))
        ]
        found += [({"index": SERVER, "replay": "f", **service}, f"service.{name} has no effect with retrieval.replay")]
    found += [
        ({"index": SERVER, "service": {name: value}}, f"service.{name} has no effect with retrieval.index = {SERVER}")
        for name, value in OF_THE_WEB.items()
    ]
    found += [
        ({"index": WEB, "service": {"token_env": "T"}}, f"service.token_env has no effect with retrieval.index = {WEB}")
    ]
    return found


@pytest.mark.parametrize(("knobs", "sentence"), refusals())
def test_a_knob_without_effect_is_refused(knobs: Knobs, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RetrievalConfig.model_validate(knobs)
    (problem,) = refused.value.errors()
    assert [fact for fact in facts(sentence) if fact not in str(problem["ctx"]["error"])] == []


TOGETHER: dict[str, Knobs] = {
    "words": {"kind": "bm25", "k1": 1.2, "b": 0.75, "stemmer": "none"},
    "words, reranked on a device": {"rerank": "cross", "rerank_depth": 20, "device": "cuda:0"},
    "vectors": {"kind": "dense", "encoder": "e5", "device": "cpu"},
    "words and vectors": {"kind": "hybrid", "k1": 1.2, "encoder": "e5", "device": "cpu", "stemmer": "german"},
    "a folder": {"index": FOLDER, "device": "cuda", **RERANKED, "cache": 5, "record": True},
    "a server": {"index": SERVER, "service": SERVICE, "cache": 5, "record": True},
    "the web": {"index": WEB, "service": {**SERVICE, **OF_THE_WEB} | {"token_env": None}} | {"cache": 5},
    "a function": {"index": FUNCTION, "cache": 5, "record": True},
    "a recording": {"replay": "searches.jsonl", "k": 5},
    "a recording of a server": {"replay": "searches.jsonl", "index": SERVER},
}
TOGETHER["the web"]["service"].pop("token_env")


@pytest.mark.parametrize("knobs", TOGETHER.values(), ids=TOGETHER)
def test_knobs_that_go_together_are_saved_and_restored(
    knobs: Knobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = {} if "index" in knobs or "replay" in knobs else {"corpus": "c.jsonl"}
    config = Config.model_validate({"data": {"train": "t", "test": "e", **corpus}, "retrieval": knobs})
    kept = with_absolute_paths(config)
    assert restore(resolved(kept)) == kept
    assert with_absolute_paths(restore(resolved(kept))) == kept
    index, given = kept.retrieval.index, knobs.get("index")
    assert index == (str(tmp_path / FOLDER) if given == FOLDER else given)
    assert kept.retrieval.replay == (str(tmp_path / "searches.jsonl") if "replay" in knobs else None)
    assert kept.retrieval.service == ServiceConfig.model_validate(knobs.get("service", {}))


def test_models_that_are_folders_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my-e5", "minilm"):
        (tmp_path / name).mkdir()
    data = {"train": "t", "test": "e", "corpus": "c"}

    def kept(**knobs: Any) -> RetrievalConfig:
        return with_absolute_paths(Config.model_validate({"data": data, "retrieval": knobs})).retrieval

    own = kept(kind="dense", encoder="my-e5", rerank="my-e5")
    assert (own.encoder, own.rerank) == (str(tmp_path / "my-e5"), str(tmp_path / "my-e5"))
    hub = kept(kind="dense", encoder="intfloat/e5-base-v2", rerank="cross-encoder/ms-marco")
    assert (hub.encoder, hub.rerank) == ("intfloat/e5-base-v2", "cross-encoder/ms-marco")
    assert kept(kind="dense", encoder="minilm").encoder == "minilm"


@pytest.mark.parametrize(
    ("index", "remote", "local"),
    [
        (None, False, True),
        (FOLDER, False, True),
        (SERVER, True, False),
        ("https://x", True, False),
        (WEB, True, False),
        (FUNCTION, False, False),
    ],
)
def test_where_searches_go(index: str | None, remote: bool, local: bool) -> None:
    config = RetrievalConfig(index=index)
    assert (config.remote, config.local) == (remote, local)


def sources(**tables: Any) -> Knobs:
    return {"data": {"train": "t", "test": "e"}, **tables}


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (sources(), "give either data.corpus or retrieval.index"),
        (
            sources(data={"train": "t", "test": "e", "corpus": "c"}, retrieval={"index": "i"}),
            "give either data.corpus or",
        ),
        ({"world": {}, "retrieval": {"index": "i"}}, "retrieval.index has no effect with a generated world; remove it"),
        ({"retrieval": {"replay": "f"}}, "data.train is missing"),
        (
            {"world": {}, "retrieval": {"pages": "p"}},
            "retrieval.pages has no effect",
        ),
        (
            {"world": {}, "retrieval": {"pages": "p", "record": True}, "agent": {"protocol": "tools-access"}},
            "agent.tools",
        ),
    ],
)
def test_a_run_searches_one_thing(tables: Knobs, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Config.model_validate(tables)
    assert sentence in str(refused.value)


TREES: Knobs = {"train": {"samples": 6, "tree": {"trees": 2}}}
WITHOUT_A_MASK: list[Knobs] = [{"old": "engine"}, {"correction": {"level": "token"}}, {"advantage": "gae"}]
# Knobs of training that do not go together, and how that is said.
USELESS: dict[str, tuple[Knobs, str]] = {
    **{
        f"lora.{name}": (
            {"model": {"lora": {name: value}}},
            f"{name} has no effect with model.lora.rank = 0; remove it",
        )
        for name, value in {"alpha": 8.0, "targets": "q_proj"}.items()
    },
    **{
        f"kl.{name}": ({"algorithm": {"kl": {name: value}}}, f"{name} has no effect with algorithm.kl.place = none")
        for name, value in {"estimator": "k1", "coefficient": 0.1, "target": 0.1}.items()
    },
    "kl.horizon": (
        {"algorithm": {"kl": {"place": "loss", "horizon": 5}}},
        "horizon has no effect with no algorithm.kl.target; remove it",
    ),
    **{
        f"likelihood.{name}": (
            {"algorithm": {"likelihood": {name: value}}},
            f"{name} has no effect with algorithm.likelihood.penalty = none; remove it",
        )
        for name, value in {"coefficient": 0.1, "threshold": 0.9, "level": "trajectory"}.items()
    },
    **{
        f"teacher.{name}": (
            {"algorithm": {"teacher": {name: value}}},
            f"{name} has no effect with no algorithm.teacher.policy; remove it",
        )
        for name, value in {"place": "loss", "coefficient": 0.1, "reward_below": 0.5}.items()
    },
    "likelihood.level, sapo": (
        {"algorithm": {"likelihood": {"penalty": "sapo", "level": "action"}}, "train": {"updates": 2}},
        "level has no effect with algorithm.likelihood.penalty = sapo; remove it",
    ),
    **{
        f"likelihood.penalty, {penalty}, one update": (
            {"algorithm": {"likelihood": {"penalty": penalty}}},
            f"algorithm.likelihood.penalty = {penalty} has no effect with train.updates = 1 and train.mode = sync",
        )
        for penalty in ("llds", "sapo")
    },
    **{
        f"correction.{name}": (
            {"algorithm": {"correction": {name: value}}},
            f"{name} has no effect with algorithm.correction.level = auto; remove it",
        )
        for name, value in {"action": "mask", "low": 0.5, "high": 3.0, "veto": 1e-4}.items()
    },
    "correction.low, truncated": (
        {"algorithm": {"correction": {"level": "token", "low": 0.5}}},
        "low has no effect with algorithm.correction.action = truncate; remove it",
    ),
    "correction.low, too high": (
        {"algorithm": {"correction": {"level": "token", "action": "mask", "low": 2.0}}},
        "low = 2 is not below high = 2; lower it",
    ),
    **{
        f"critic.{name}": (
            {"algorithm": {"critic": {name: value}}},
            f"critic.{name} has no effect with algorithm.advantage = grpo; remove it",
        )
        for name, value in {
            "policy": "m",
            "learning_rate": 1e-3,
            "gamma": 0.9,
            "lam": 0.9,
            "clip": 0.1,
            "warmup": 2,
        }.items()
    },
    "constant": ({"algorithm": {"constant": 9}}, "constant has no effect with algorithm.normalise = token; remove it"),
    "overlong_tokens": (
        {"algorithm": {"overlong": "filter", "overlong_tokens": 9}},
        "overlong_tokens has no effect with algorithm.overlong = filter; remove it",
    ),
    "overlong_tokens, too many": (
        {"algorithm": {"overlong": "shape"}, "agent": {"context_tokens": 100}},
        "algorithm.overlong_tokens = 128 is not less than agent.context_tokens = 100; lower it",
    ),
    **{
        f"clip_dual, {loss}": (
            {"algorithm": {"loss": loss, "clip_dual": 3.0}},
            f"clip_dual has no effect with algorithm.loss = {loss}; remove it",
        )
        for loss in ("gspo", "cispo")
    },
    "old, corrected": (
        {"algorithm": {"old": "engine", "correction": {"level": "token"}}},
        "old = engine leaves algorithm.correction nothing to correct; remove one of the two",
    ),
    **{
        f"origin_mask, {next(iter(knobs))}": (
            {"algorithm": {"origin_mask": False} | knobs},
            "origin_mask = false trains on tokens no engine sampled; remove algorithm.old = engine, ",
        )
        for knobs in WITHOUT_A_MASK
    },
    **{
        f"tree.{name}": ({"train": {"tree": {name: 3}}}, f"{name} has no effect with train.tree.trees = 0; remove it")
        for name in ("branches", "rounds")
    },
    "tree, samples": (
        {"train": {"samples": 8, "tree": {"trees": 2}}},
        "samples = 8 is not the number of episodes that train.tree gives: 2 trees x (1 + 2 branches x 1 rounds) = 6",
    ),
    "tree_grpo": (
        {"algorithm": {"advantage": "tree_grpo"}},
        "algorithm.advantage = tree_grpo compares the episodes of trees; set train.tree.trees",
    ),
    **{
        f"information_gain.{name}": (
            {"algorithm": {"information_gain": {name: value}}},
            f"{name} has no effect with algorithm.information_gain.coefficient = 0; remove it",
        )
        for name, value in {"potential": "logprob", "terminal": "last"}.items()
    },
    "information_gain, method": (
        {"algorithm": {"information_gain": {"coefficient": 0.1}}, "agent": {"method": "cot"}},
        "algorithm.information_gain agent.method = search agent.method = cot",
    ),
    **{
        f"step_groups, {name}": (
            {"algorithm": {"advantage": name, "step_groups": 1.0}},
            f"step_groups algorithm.advantage = grpo, dr_grpo, rloo {name}",
        )
        for name in ("gae", "reinforce", "reinforce_pp")
    },
    "step_groups, method": (
        {"algorithm": {"step_groups": 1.0}, "agent": {"method": "cot"}},
        "algorithm.step_groups agent.method = search agent.method = cot",
    ),
    "step_groups, tree": (TREES | {"algorithm": {"step_groups": 1.0}}, "algorithm.step_groups train.tree"),
    "tree, gae": (TREES | {"algorithm": {"advantage": "gae"}}, "algorithm.advantage = gae with train.tree"),
    "tree, kl": (TREES | {"algorithm": {"kl": {"place": "reward"}}}, "algorithm.kl.place = reward with train.tree"),
    "tree, teacher": (
        TREES | {"algorithm": {"teacher": {"policy": "teacher"}}},
        "algorithm.teacher.place = reward with train.tree",
    ),
    "tree, method": (TREES | {"agent": {"method": "cot"}}, "train.tree agent.method = search agent.method = cot"),
    "tree, outside": (TREES | {"agent": {"run": "import:mine.agent"}}, "train.tree agent.method = search"),
    "mode": (
        {"train": {"mode": "ahead"}},
        "train.mode = ahead samples with weights one version old; choose algorithm.correction.level = token",
    ),
    "mode, async": (
        {"train": {"mode": "async", "staleness": 3}},
        "train.mode = async samples with weights up to 3 versions old; set algorithm.correction.level = token",
    ),
    "mode, lockstep": (
        {
            "train": {"mode": "async"},
            "algorithm": {"correction": {"level": "token"}},
            "engine": {"lockstep": "on"},
        },
        "engine.lockstep = on has no effect with train.mode = async; remove it",
    ),
    **{
        f"staleness, {mode}": (
            {
                "train": {"mode": mode, "staleness": 1},
                "algorithm": {"correction": {"level": "token"}},
            },
            f"staleness has no effect with train.mode = {mode}; remove it",
        )
        for mode in ("sync", "ahead")
    },
    "mode, stale": (
        {
            "train": {"mode": "ahead"},
            "algorithm": {"correction": {"level": "token"}},
            "engine": {"stale_cache": "keep"},
        },
        "engine.stale_cache = keep has no effect with train.mode = ahead; remove it",
    ),
    **{
        f"engine.{name}, embedded": (
            {"engine": {name: value}},
            f"{name} has no effect with engine.kind = paged; remove it",
        )
        for name, value in {
            "url": "http://a:1",
            "command": "v serve",
            "weights": "device",
            "exchange": "e",
            "in_flight": "abort",
        }.items()
    },
    **{
        f"engine.{name}, at an address": (
            {"engine": {"kind": "vllm", "url": "http://a:1", name: value}},
            f"{name} has no effect with engine.url, whose servers were started with their own; remove it",
        )
        for name, value in {"command": "v serve", "memory": 0.5, "prefill_tokens": 9}.items()
    },
    "engine.in_flight, own": (
        {"engine": {"kind": "vllm", "in_flight": "abort"}},
        "in_flight has no effect with a server of the run's own, which serves nobody else; remove it",
    ),
    "engine.exchange, by device": (
        {"engine": {"kind": "vllm", "weights": "device", "exchange": "e"}},
        "exchange has no effect with engine.weights = device; remove it",
    ),
    "engine.stale_cache, vllm": (
        {"engine": {"kind": "vllm", "stale_cache": "keep"}},
        "stale_cache has no effect with engine.kind = vllm",
    ),
    "engine.lockstep, vllm": (
        {"engine": {"kind": "vllm", "lockstep": "on"}},
        "lockstep has no effect with engine.kind = vllm, which never waits for callers; remove it",
    ),
    "engine.url, none": (
        {"engine": {"kind": "vllm", "url": " , "}},
        "url = ' , ' names no address; write it like http://127.0.0.1:8000, or remove it",
    ),
    "engine.url, wrong": (
        {"engine": {"kind": "vllm", "url": "http://a:1, b:2"}},
        "url = 'b:2' is no address; write it like http://127.0.0.1:8000",
    ),
    "engine.command, no server": (
        {"engine": {"kind": "vllm", "command": "env/bin/vllm --enforce-eager"}},
        "command = 'env/bin/vllm --enforce-eager' has no word serve; write it like env/bin/vllm serve",
    ),
    "engine.command, another server": (
        {"engine": {"kind": "sglang", "command": "env/bin/python --device cpu"}},
        "command = 'env/bin/python --device cpu' has no word serve or sglang.launch_server",
    ),
    "engine.in_flight, sglang": (
        {"engine": {"kind": "sglang", "url": "http://a:1", "in_flight": "pause"}},
        "in_flight = pause is for kind = vllm; use finish or abort",
    ),
    "engine.exchange, by broadcast": (
        {"engine": {"kind": "sglang", "weights": "collective", "exchange": "e"}},
        "exchange has no effect with engine.weights = collective; remove it",
    ),
    "lora, sglang": (
        {"engine": {"kind": "sglang"}, "model": {"lora": {"rank": 8}}},
        "model.lora.rank = 8 trains adapters, but engine.kind = sglang takes full weights only; set engine.kind = vllm",
    ),
    "lora, vllm by broadcast": (
        {"engine": {"kind": "vllm", "weights": "collective"}, "model": {"lora": {"rank": 8}}},
        "model.lora.rank = 8 trains adapters, but engine.weights = collective takes full weights only; use disk",
    ),
    "cluster.rollout_gpus": (
        {"cluster": {"rollout_gpus": 1.5}},
        "1.5 GPUs are more than one and not a whole number",
    ),
    "keep_best": (
        {"train": {"keep_best": True}},
        "train.keep_best has no effect with evaluate.every = 0; set it to a number of steps",
    ),
    **{
        f"resample, {advantage}": (
            {"train": {"resample": 2}, "algorithm": {"advantage": advantage}},
            f"train.resample has no effect with algorithm.advantage = {advantage}; remove it",
        )
        for advantage in ("gae", "reinforce", "reinforce_pp")
    },
    "useless_search": (
        {"reward": {"useless_search": 0.1}, "agent": {"method": "rag"}},
        "reward.useless_search has no effect with agent.method = rag, which makes no searches of its own; remove it",
    ),
    "useless_search, tools": (
        {"reward": {"useless_search": 0.1}, "agent": {"tools": ["access"], "protocol": "tools"}},
        "reward.useless_search has no effect agent.tools = ['access']",
    ),
    "useless_search, searches": (
        {"reward": {"useless_search": 0.1}, "agent": {"searches": 0}},
        "reward.useless_search has no effect agent.searches = 0",
    ),
    **{
        f"useless_search, {name}": (
            {"reward": {"useless_search": 0.1}, "agent": {name: value}},
            f"reward.useless_search has no effect with agent.{name} = {value}",
        )
        for name, value in {"run": "import:a.b", "command": "node agent.js"}.items()
    },
    "information_gain, searches": (
        {"algorithm": {"information_gain": {"coefficient": 0.1}}, "agent": {"searches": 0}},
        "algorithm.information_gain.coefficient has no effect with agent.searches = 0",
    ),
    "data.weights, a world": (
        {"data": {"train": ["a", "b"], "weights": [1.0, 2.0]}},
        "data.train has no effect with a generated world; remove it",
    ),
    "curriculum": (
        {"train": {"curriculum": "spread"}, "data": {"shuffle": False}},
        "train.curriculum = spread reorders questions, but data.shuffle = false keeps the file order; remove one",
    ),
    "updates": (
        {"train": {"updates": 3, "questions": 2}},
        "train.updates = 3 cuts the 2 groups of a step into mini-batches smaller than a group; lower it",
    ),
    **{
        f"samples, {advantage}": (
            {"train": {"samples": 1}, "algorithm": {"advantage": advantage}},
            f"train.samples = 1 leaves algorithm.advantage = {advantage} nothing to compare with",
        )
        for advantage in ("grpo", "dr_grpo", "rloo")
    },
}


@pytest.mark.parametrize(("tables", "sentence"), USELESS.values(), ids=USELESS)
def test_a_knob_of_training_without_effect_is_refused(tables: Knobs, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Config.model_validate({"world": {}, **tables})
    (problem,) = refused.value.errors()
    assert [fact for fact in facts(sentence) if fact not in str(problem["ctx"]["error"])] == []


@pytest.mark.parametrize("mixture", [{"five_hop": 1.0}, {"one_hop": 0.0}, {}])
def test_a_mixture_without_a_known_question_type_is_rejected(mixture: dict[str, float]) -> None:
    assert Config.model_validate({"world": {"mixture": {"two_hop": 1.0}}}).world
    with pytest.raises(ValidationError, match=r"world\.mixture"):
        Config.model_validate({"world": {"mixture": mixture}})


@pytest.mark.parametrize("section", ["train", "world"])
def test_a_seed_that_the_engine_would_refuse_is_refused_first(section: str) -> None:
    Config.model_validate({"world": {}, section: {"seed": 2**64 - 1}})
    with pytest.raises(ValidationError, match="less than 18446744073709551616"):
        Config.model_validate({"world": {}, section: {"seed": 2**64}})


EFFECTIVE: dict[str, Knobs] = {
    "lora": {"model": {"lora": {"rank": 8, "alpha": 16.0, "targets": "q_proj,v_proj"}}},
    "adaptive KL": {"algorithm": {"kl": {"place": "reward", "estimator": "k1", "target": 0.1, "horizon": 50}}},
    "IcePop": {"algorithm": {"correction": {"level": "token", "action": "mask", "low": 0.5, "high": 5.0}}},
    "veto": {"algorithm": {"correction": {"level": "geometric", "action": "clip", "low": 0.5, "veto": 1e-4}}},
    "PPO": {"algorithm": {"advantage": "gae", "critic": {"gamma": 0.9, "warmup": 5}}, "train": {"samples": 1}},
    "DAPO": {"algorithm": {"overlong": "shape", "overlong_tokens": 64, "clip_high": 0.28}, "train": {"resample": 3}},
    "ahead": {"algorithm": {"correction": {"level": "token"}}, "train": {"mode": "ahead"}},
    "async": {
        "algorithm": {"correction": {"level": "token"}},
        "train": {"mode": "async", "staleness": 3},
        "engine": {"stale_cache": "keep"},
    },
    "LLDS": {"algorithm": {"likelihood": {"penalty": "llds", "level": "trajectory"}}, "train": {"updates": 2}},
    "SAPO ahead": {
        "algorithm": {"correction": {"level": "token"}, "likelihood": {"penalty": "sapo", "threshold": 0.8}},
        "train": {"mode": "ahead"},
    },
    "DGPO": {"algorithm": {"advantage": "gae", "teacher": {"policy": "big", "coefficient": 0.01}}},
    "async without staleness": {"train": {"mode": "async", "staleness": 0}, "engine": {"lockstep": "on"}},
    "no mask": {"algorithm": {"origin_mask": False, "old": "recompute"}},
    "vLLM": {"engine": {"kind": "vllm", "command": "env/bin/vllm serve", "memory": 0.5, "weights": "device"}},
    "SGLang": {"engine": {"kind": "sglang", "weights": "collective", "memory": 0.5}},
    "SGLang by address": {"engine": {"kind": "sglang", "url": "http://a:1", "exchange": "w", "in_flight": "finish"}},
    "vLLM by address": {"engine": {"kind": "vllm", "url": "http://a:1", "exchange": "w", "in_flight": "abort"}},
    "the best": {"train": {"keep_best": True}, "evaluate": {"every": 5, "before": False, "after": False}},
}


@pytest.mark.parametrize("tables", EFFECTIVE.values(), ids=EFFECTIVE)
def test_knobs_of_training_that_go_together_are_saved_and_restored(tables: Knobs) -> None:
    config = Config.model_validate({"world": {}, **tables})
    assert restore(resolved(config)) == config


@pytest.mark.parametrize(
    ("knobs", "recomputes"),
    [
        ({}, False),
        ({"old": "engine"}, False),
        ({"old": "recompute"}, True),
        ({"correction": {"level": "sequence"}}, True),
        ({"origin_mask": False}, True),
    ],
    ids=str,
)
def test_old_logprobs_are_recomputed_where_something_needs_them(knobs: Knobs, recomputes: bool) -> None:
    assert AlgorithmConfig.model_validate(knobs).recomputes == recomputes


def test_a_recording_needs_no_corpus() -> None:
    assert Config.model_validate(sources(retrieval={"replay": "f"})).data.corpus is None


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, False),
        ({"reward": {"abstain": 0.3}}, True),
        ({"reward": {"abstain": 0}}, True),
        ({"reward": {"abstain": 0.3}, "agent": {"searches": 2}}, True),
        ({"reward": {"abstain": 0.3}, "agent": {"abstain": False}}, False),
        ({"agent": {"abstain": True}}, True),
        ({"reward": {"abstain": 0.3}, "agent": {"command": "node agent.js"}}, False),
    ],
)
def test_the_prompt_allows_what_the_reward_pays_for(tables: Knobs, told: bool) -> None:
    config = Config.model_validate({"world": {}, **tables})
    assert bool(config.agent.abstain) is told
    assert restore(resolved(config)) == config


FILES: Knobs = {"corpus": "c", "train": ["a", "b"], "test": "t"}


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"data": {**FILES, "weights": [1.0]}}, "weights = [1.0] needs one number for each of the 2 files"),
        ({"data": {**FILES, "weights": [1.0, 2.0], "shuffle": False}}, "weights has no effect with data.shuffle"),
        ({"data": {**FILES, "weights": [1.0, 2.0]}, "train": {"curriculum": "spread"}}, "train.curriculum = spread"),
    ],
    ids=["too few", "in order", "curriculum"],
)
def test_weights_of_files_that_do_not_fit_are_refused(tables: Knobs, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Config.model_validate(tables)
    (problem,) = refused.value.errors()
    assert [fact for fact in facts(sentence) if fact not in str(problem["ctx"]["error"])] == []
    weighted = Config.model_validate({"data": {**FILES, "weights": [1.0, 2.0]}})
    assert restore(resolved(weighted)) == weighted
