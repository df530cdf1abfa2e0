"""Recipes: loading, overriding, saving and refusing, each refusal in one line."""

import re
from pathlib import Path

import pytest

from sleuth.config.recipe import (
    MAY_CHANGE,
    amend,
    load,
    overrides,
    resolve_policy,
    resolved,
    restore,
    settings,
    shipped,
    with_absolute_paths,
)
from sleuth.config.tree import Config
from sleuth.errors import ConfigError, InputError

REFUSALS = {
    "nearest key": ("train.step=3", "unknown key train.step; the nearest is train.steps"),
    "lost table": ("learning_rate=3", "unknown key learning_rate; the nearest is train.learning_rate"),
    "misspelt table": ("agents.searches=3", "unknown key agents.searches; the nearest is agent.searches"),
    "empty unknown table": ("wrld={}", "unknown key wrld; the nearest is world."),
    "below a setting": ("train.steps.x=3", "unknown key train.steps.x; the nearest is train.steps"),
    "text for integer": ("train.steps=ten", 'train.steps = "ten" should be a valid integer'),
    "real for integer": ("train.steps=1.5", "train.steps = 1.5 should be a valid integer"),
    "integer for text": ("name=5", "name = 5 should be a valid string"),
    "table for setting": ("train.steps={a=1}", 'train.steps = {"a": 1} should be a valid integer'),
    "setting for table": ("train=5", "train = 5 should be a table, such as train."),
    "out of range": ("train.steps=0", "train.steps = 0 should be greater than 0"),
    "infinite": ("train.learning_rate=inf", "train.learning_rate = Infinity should be a finite number"),
    "not a choice": ("algorithm.kl.place=top", "algorithm.kl.place = \"top\" should be 'none', 'loss' or 'reward'"),
    "no effect": ("algorithm.constant=9", "algorithm.constant has no effect with algorithm.normalise = token"),
    "no effect, deep": ("algorithm.kl.estimator=k1", "algorithm.kl.estimator has no effect with algorithm.kl.place"),
    "no effect, across tables": ("data.corpus=c.jsonl", "data.corpus has no effect with a generated world"),
    "nothing to compare": (
        "train.samples=1",
        "train.samples = 1 leaves algorithm.advantage = grpo nothing to compare with",
    ),
    "updates smaller than a group": (
        "train.updates=17",
        "train.updates = 17 cuts the 16 groups of a step into mini-batches smaller than a group; lower it",
    ),
    "no value": ("train.steps", "--set 'train.steps' is not key=value"),
    "no key": ("=3", "--set '=3' is not key=value"),
}

BROKEN_FILES = {
    "not TOML": (b"name = 'a'\nsteps 3\n", "is not valid TOML: ", "line 2"),
    "not text": (b"name = '\xff'\n", "is not UTF-8 text", "byte 0xff"),
}


def facts(sentence: str) -> list[str]:
    """The setting, names and values in a message: what a test may rely on, unlike its wording."""
    return [sentence.split()[0], *re.findall(r"[\w.-]*[._\d][\w.-]*\w", sentence)]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text('[world]\n[train]\nsteps = 7\n[algorithm]\nnormalise = "constant"\n')
    return path


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipe_loads_under_its_own_name(name: str) -> None:
    assert load(name).name == name


def test_file_is_loaded_by_path(recipe: Path) -> None:
    config = load(str(recipe))
    assert config.train.steps == 7
    assert config.algorithm.constant == 1024


def test_overrides_apply_in_order_and_make_tables(recipe: Path) -> None:
    config = load(str(recipe), ["train.steps=8", "train.steps = 9", "algorithm.kl.place=loss", 'name="a b"'])
    assert config.train.steps == 9
    assert config.algorithm.kl.place == "loss"
    assert config.name == "a b"


def test_bare_word_is_text_and_whole_number_is_real(recipe: Path) -> None:
    config = load(str(recipe), ["model.policy=/models/qwen-3b", "train.learning_rate=1"])
    assert config.model.policy == "/models/qwen-3b"
    assert config.train.learning_rate == 1.0


@pytest.mark.parametrize(("override", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_refusal_is_one_line(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("quickstart", [override])
    assert [fact for fact in facts(sentence) if fact not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_k1_in_the_loss_is_refused_for_it_has_no_gradient_there() -> None:
    with pytest.raises(
        ConfigError, match=r"^algorithm\.kl\.estimator = k1 has no effect with algorithm\.kl\.place = loss"
    ):
        load("quickstart", ["algorithm.kl.place=loss", "algorithm.kl.estimator=k1"])
    assert load("quickstart", ["algorithm.kl.place=reward", "algorithm.kl.estimator=k1"]).algorithm.kl.estimator == "k1"


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_what_is_never_negative_is_refused_in_the_reward(estimator: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm\.kl\.estimator = {estimator}"):
        load("quickstart", ["algorithm.kl.place=reward", f"algorithm.kl.estimator={estimator}"])


def test_an_estimator_that_is_not_named_is_that_of_its_place() -> None:
    found = {place: load("quickstart", [f"algorithm.kl.place={place}"]).algorithm.kl for place in ("loss", "reward")}
    assert {place: kl.resolved_estimator for place, kl in found.items()} == {"loss": "k3", "reward": "k1"}


@pytest.mark.parametrize("advantage", ["reinforce", "import:own.advantage"])
def test_one_sample_is_enough_where_no_group_is_needed(advantage: str) -> None:
    assert load("quickstart", ["train.samples=1", f"algorithm.advantage={advantage}"]).train.samples == 1


@pytest.mark.parametrize(("content", "problem", "place"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_broken_file_is_named_with_the_place(tmp_path: Path, content: bytes, problem: str, place: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path} {problem}")
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_recipe_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"'quikstart'.*'quickstart'.*shipped: .*quick"):
        load("quikstart")


def test_missing_file_names_its_path() -> None:
    with pytest.raises(ConfigError, match=r"missing/own\.toml"):
        load("missing/own.toml")


@pytest.mark.parametrize("override", ["train.steps=3", "train.seed=0", "evaluate.every=5"])
def test_saved_tree_restores_the_config(recipe: Path, override: str) -> None:
    config = load(str(recipe), [override])
    tree = resolved(config)
    assert set(tree) == set(Config.model_fields)
    assert restore(tree) == config


def test_saved_tree_of_another_version_is_refused(recipe: Path) -> None:
    tree = resolved(load(str(recipe)))
    with pytest.raises(ConfigError, match=r"train\.momentum"):
        restore({**tree, "train": {"momentum": 0.5}})


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("train.steps=9", "steps", 9),
        ("train.keep_best=false", "keep_best", False),
        ("engine.slots=3", "slots", 3),
        ("engine={slots=3}", "slots", 3),
        ("guards.non_finite=stop", "non_finite", "stop"),
        ("track.to=wandb", "to", "wandb"),
        ("evaluate.after=false", "after", False),
    ],
)
def test_run_that_goes_on_may_change_what_makes_no_other_run_of_it(
    recipe: Path, override: str, key: str, value: object
) -> None:
    config = amend(resolved(load(str(recipe))), [override])
    table = getattr(config, override.partition("=")[0].partition(".")[0])
    assert getattr(table, key) == value
    assert config.algorithm == load(str(recipe)).algorithm


FIXED = [setting.key for setting in settings() if not setting.key.startswith(MAY_CHANGE)]


@pytest.mark.parametrize("key", [*FIXED, "train", "algorithm", "algorithm.kl", "data"])
def test_run_that_goes_on_may_change_nothing_else(recipe: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        amend(resolved(load(str(recipe))), ["train.steps=9", f"{key}=1"])
    assert str(caught.value).startswith(f"{key} cannot change")
    assert "train.steps, " in str(caught.value)
    assert "engine.*, guards.*, track.*" in str(caught.value)


def test_run_that_goes_on_is_told_of_keys_that_do_not_exist(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.step\b.*train\.steps"):
        amend(resolved(load(str(recipe))), ["train.step=9"])


def test_settings_have_unique_keys_and_descriptions() -> None:
    keys = [setting.key for setting in settings()]
    assert len(keys) == len(set(keys))
    assert [setting.key for setting in settings() if not setting.description] == []


def test_setting_shows_type_and_default() -> None:
    table = {setting.key: (setting.type, setting.default) for setting in settings()}
    assert table["train.steps"] == ("int", 100)
    assert table["data.corpus"] == ("str", None)
    assert table["algorithm.kl.estimator"] == ("k1 | k2 | k3", None)


def test_anchored_paths_do_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        '[model]\npolicy = "m"\n[data]\ntrain = "a/t.jsonl"\ntest = "/e.jsonl"\n[retrieval]\nindex = "i"\n'
        '[engine]\nkind = "vllm"\nexchange = "w"\n'
    )
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(load(str(recipe)))
    assert config.engine.exchange == str(tmp_path / "w")
    assert config.model.policy == str(tmp_path / "m")
    assert config.data.train == str(tmp_path / "a" / "t.jsonl")
    assert (config.data.test, config.data.corpus) == ("/e.jsonl", None)
    assert config.retrieval.index == str(tmp_path / "i")
    assert restore(resolved(config)) == config


@pytest.mark.parametrize("vocabulary", ["tokenizer.json", "vocab.txt"])
def test_own_policy_is_its_folder(tmp_path: Path, vocabulary: str) -> None:
    for name in ("config.json", vocabulary):
        (tmp_path / name).write_text("{}")
    assert resolve_policy(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "config.json"),
        (["config.json", "tokenizer_config.json"], "tokenizer.json"),
        (["manifest.json"], "config.json"),
        (["checkpoints/step-1"], "sleuth export"),
    ],
)
def test_incomplete_policy_is_refused(tmp_path: Path, names: list[str], sentence: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=sentence):
        resolve_policy(str(tmp_path))


@pytest.mark.parametrize("missing", ["model", "missing/model/folder"])
def test_missing_policy_is_refused(missing: str) -> None:
    with pytest.raises(InputError, match=f"no model folder at {missing}"):
        resolve_policy(missing)


def test_recipe_stands_on_its_base(tmp_path: Path) -> None:
    (tmp_path / "lower.toml").write_text(
        'name = "lower"\n[world]\n[train]\nsteps = 7\nsamples = 3\n[algorithm.kl]\nplace = "loss"\n'
    )
    upper = tmp_path / "folder" / "upper.toml"
    upper.parent.mkdir()
    upper.write_text('base = "../lower.toml"\nname = "upper"\n[train]\nsteps = 9\n[algorithm.kl]\nestimator = "k2"\n')
    config = load(str(upper), ["train.seed=5"])
    assert (config.name, config.train.steps, config.train.samples, config.train.seed) == ("upper", 9, 3, 5)
    assert (config.algorithm.kl.place, config.algorithm.kl.estimator) == ("loss", "k2")
    assert config.world is not None


def test_shipped_recipe_is_a_base_by_name(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "quickstart"\nname = "own"\n[train]\nsteps = 3\n')
    expected = load("quickstart", ["train.steps=3", "name=own"])
    assert load(str(own)) == expected


BASES = {
    "itself": ("own.toml", 'base = "own.toml" names itself'),
    "a loop": ("loop.toml", 'base = "loop.toml" has its own base, "own.toml"'),
    "two levels": ("two.toml", 'base = "two.toml" has its own base, "quickstart"'),
    "unknown": ("quikstart", 'base = "quikstart" is not a recipe'),
    "a folder": (".", 'base = "." is not a recipe'),
}


@pytest.mark.parametrize(("base", "sentence"), BASES.values(), ids=BASES)
def test_base_that_cannot_be_one_is_refused(tmp_path: Path, base: str, sentence: str) -> None:
    own = tmp_path / "own.toml"
    for path, named in ((own, base), (tmp_path / "loop.toml", "own.toml"), (tmp_path / "two.toml", "quickstart")):
        path.write_text(f'base = "{named}"\n')
    with pytest.raises(ConfigError) as caught:
        load(str(own))
    assert str(caught.value).startswith(f"{own}: {sentence}")
    assert "\n" not in str(caught.value)


def test_base_is_text(recipe: Path) -> None:
    recipe.write_text("base = 3\n")
    with pytest.raises(ConfigError, match=r"base = 3 "):
        load(str(recipe))


def test_problem_of_a_base_is_told_as_of_any_recipe(tmp_path: Path) -> None:
    (tmp_path / "lower.toml").write_text("[world]\n[train]\nstep = 7\n")
    (tmp_path / "own.toml").write_text('base = "lower.toml"\ntrain = 5\n')
    with pytest.raises(ConfigError, match=r"train = 5 "):
        load(str(tmp_path / "own.toml"))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('name="a\\u0000b"', "name = .* .*NUL"),
        ('model.policy="a\\u0000b"', "model.policy = .* .*NUL"),
        ('name="a\\nb"', "control characters"),
        (f'name="{"x" * 300}"', "200 bytes"),
        ("retrieval.replay=''", 'retrieval.replay = "" is empty'),
        ("algorithm.clip_high=1e308", "algorithm.clip_high = 1e.308 should be less than or equal to 1000000"),
        ("train.questions=100000000000000000000", "should be less than or equal to 1000000"),
        ("train.samples=1000000", "32,000,000 episodes"),
        ("engine.slots=2147483647", "engine.slots = 2147483647 should be less than or equal to 65536"),
        ("agent.context_tokens=2147483647", "should be less than or equal to 16777216"),
        ("retrieval.service.deadline=1e308", "should be less than or equal to 1000000"),
    ],
)
def test_values_that_no_run_can_have_are_one_short_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        load("quickstart", [setting, *(["train.questions=32"] if "samples" in setting else [])])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


ODD = (
    '""', "   ", '"a\\u0000b"', '"a\\nb"', "x" * 100_000, "-1", "0", "100000000000000000000", "1e20", "1e308", "-1e308",
    "1e-308", "nan", "inf", "true", "none", "null", "[1, 2]", "{a = 1}", '"\u0661\u0662"', "/nowhere/at/all",
    '"import:nothing.here"', '"import:"', '"../.."', '"~"', '"\\u202e"',
)  # fmt: skip


def test_odd_values_are_taken_or_refused_in_one_short_sentence() -> None:
    """Three of the values for each setting, other ones for the next."""
    faults = []
    for number, setting in enumerate(settings()):
        for value in ODD[number % 9 :: 9]:
            try:
                resolved(with_absolute_paths(load("quickstart", [f"{setting.key}={value}"])))
            except (ConfigError, InputError) as refused:
                if "\n" in str(refused) or len(str(refused)) > 1000:
                    faults.append(f"{setting.key} = {value[:30]!r}: {str(refused)[:200]!r}")
    assert faults == []


def test_python_settings_are_overrides(recipe: Path) -> None:
    settings = {
        "train": {"steps": 3, "learning_rate": 1e-5},
        "agent.tools": ["search", str.upper],
        "name": 'a "b"',
        "agent": {"tool_limits": {"upper": {"calls": 2}}},
        "train.questions": None,
    }
    config = load(str(recipe), overrides(settings))
    assert (config.train.steps, config.train.learning_rate, config.name) == (3, 1e-5, 'a "b"')
    assert config.agent.tools[1].startswith("import:")
    assert config.agent.tool_limits["upper"].calls == 2
    assert config.train.questions == type(config.train)().questions
    with pytest.raises(ConfigError, match=r"train\.steps = .*complex"):
        overrides({"train.steps": 3j})


def test_outside_agent_replaces_the_recipes_own(tmp_path: Path) -> None:
    config = load("quickstart", ["agent.run=import:mine.run"])
    assert (config.agent.run, config.agent.prompt, config.agent.turn_tokens) == ("import:mine.run", None, 64)
    (tmp_path / "mine.toml").write_text('base = "quickstart"\n[agent]\nrun = "import:mine.run"\n')
    assert load(str(tmp_path / "mine.toml")).agent == config.agent
    with pytest.raises(ConfigError, match=r"agent.*searches has no effect"):
        load("quickstart", ["agent.run=import:mine.run", "agent.searches=3"])


@pytest.mark.parametrize(("method", "observation"), [("rag", 96), ("direct", 500)])
def test_single_turn_method_replaces_the_limits_of_several_turns(tmp_path: Path, method: str, observation: int) -> None:
    config = load("quickstart", [f"agent.method={method}"])
    assert (config.agent.method, config.agent.prompt, config.agent.observation_tokens) == (method, "brief", observation)
    (tmp_path / "mine.toml").write_text(f'base = "quickstart"\n[agent]\nmethod = "{method}"\n')
    assert load(str(tmp_path / "mine.toml")).agent == config.agent
    with pytest.raises(ConfigError, match=r"agent.*searches has no effect"):
        load("quickstart", [f"agent.method={method}", "agent.searches=3"])
