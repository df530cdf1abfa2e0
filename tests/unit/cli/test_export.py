"""The command export: a clean folder of the checkpoint that was meant, or a refusal."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from sleuth.cli.export import export
from sleuth.cli.megatron import import_
from sleuth.errors import ConfigError, InputError
from sleuth.model import lora
from sleuth.model.lora import LoRA
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.run import Run
from sleuth.train.checkpoint import Progress, Saver
from sleuth.train.optimiser import Optimiser

STEPS = {1: 0.5, 2: 0.75, 3: 0.25}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Run:
    """A run of an adapter with three checkpoints, the second the best; their adapters differ."""
    made = Run.create(tmp_path_factory.mktemp("runs") / "run", {})
    model, adapter = tiny(), LoRA(2, 4.0, "q_proj")
    lora.attach(model, adapter)
    policy = Policy(model, tokens, adapter)
    optimiser = Optimiser(policy.parameters(), learning_rate=0.1, weight_decay=0.0)
    with Saver(made, keep=9) as saver:
        for step, score in STEPS.items():
            with torch.no_grad():
                for _, parameter in policy.parameters():
                    parameter.fill_(step / 10)
            saver.save(policy, optimiser, Progress(step, score=score))
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def same(first: Path, second: Path) -> bool:
    mine, theirs = weights(first), weights(second)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_newest_best_and_any_step(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(run.path, tmp_path / "newest")
    export(run.path, tmp_path / "best", best=True)
    export(run.path, tmp_path / "first", step=1)
    export(run.checkpoint(1), tmp_path / "same")
    for name, step in {"newest": 3, "best": 2, "first": 1, "same": 1}.items():
        assert same(tmp_path / name, run.checkpoint(step))
    assert not same(tmp_path / "newest", tmp_path / "best")
    said = capsys.readouterr().err
    assert f"{run.checkpoint(2)} exported to {tmp_path / 'best'}\nstep 2 has the best held-out score, 0.750" in said
    assert said.count(f"the run is not finished; continue it with: sleuth train --resume {run.path}") == 3
    assert said.endswith(f"{run.checkpoint(1)} exported to {tmp_path / 'same'}\n")


def test_best_that_is_the_beginning_is_said_to_be(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = Run.open(shutil.copytree(run.path, tmp_path / "run"))
    copied.checkpoint(2).rename(copied.checkpoint(0))
    copied.write_json("best.json", {"step": 0, "score": 0.75})
    copied.write_summary({})
    export(copied.path, tmp_path / "best", best=True)
    score, remark = capsys.readouterr().err.splitlines()[1:]
    assert score.startswith("step 0 ")
    assert score.endswith("0.750")
    assert "initial policy" in remark


def test_folder_is_clean_and_stock_transformers_load_it(run: Run, tmp_path: Path, tokens: Tokens) -> None:
    export(run.path, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {"trainer", "adapter"} & names
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("Who wrote the book?")["input_ids"] == tokens.encode("Who wrote the book?")


def test_weights_are_rounded_when_asked(run: Run, tmp_path: Path) -> None:
    export(run.path, tmp_path / "out", dtype="bfloat16")
    before, after = weights(run.checkpoint(3)), weights(tmp_path / "out")
    assert all(torch.equal(after[name], tensor.bfloat16()) for name, tensor in before.items())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_index_of_several_files_is_kept_true(run: Run, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.checkpoint(3))
    model.save_pretrained(tmp_path / "step-1", max_shard_size="10KB")
    (tmp_path / "step-1" / "trainer").mkdir()
    export(tmp_path / "step-1", tmp_path / "out", dtype="float16")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * sum(each.numel() for each in weights(run.checkpoint(3)).values())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.float16


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_megatron_checkpoint_comes_back_as_it_was(run: Run, tmp_path: Path, dtype: str | None) -> None:
    export(run.path, tmp_path / "megatron", best=True, dtype=dtype, megatron=True)
    assert (tmp_path / "megatron" / "iter_0000002" / "metadata.json").is_file()
    export(run.path, tmp_path / "plain", best=True, dtype=dtype)
    import_(tmp_path / "out", tmp_path / "megatron", str(run.checkpoint(2)))
    assert same(tmp_path / "out", tmp_path / "plain")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()


def test_megatron_export_has_the_same_checks(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        export(run.path, tmp_path, megatron=True)
    with pytest.raises(ConfigError, match="--dtype int8"):
        export(run.path, tmp_path / "out", dtype="int8", megatron=True)
    torn = shutil.copytree(run.checkpoint(3), tmp_path / "step-3")
    (torn / "trainer" / "checksums.json").unlink()
    kept = {name: each for name, each in weights(torn).items() if "norm" not in name}
    save_file(kept, torn / "model.safetensors")
    with pytest.raises(InputError, match=r"step-3 lacks the weight .*norm"):
        export(torn, tmp_path / "out", megatron=True)
    (torn / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        export(torn, tmp_path / "out", megatron=True)
    assert {each.name for each in tmp_path.iterdir()} == {"step-3"}


def test_existing_folder_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        export(run.path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    latest = shutil.copytree(run.checkpoint(3), tmp_path / "step-3")
    with pytest.raises(InputError, match=r"inner is inside the checkpoint .*step-3"):
        export(latest, latest / "inner")
    for file in latest.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(InputError, match="step-3 has no weights"):
        export(latest, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_does_not_exist_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no checkpoint of step 9; .*1, 2, 3"):
        export(run.path, tmp_path / "out", step=9)
    with pytest.raises(InputError, match="is not a run folder"):
        export(tmp_path, tmp_path / "out")
    empty = Run.create(tmp_path / "empty", {})
    with pytest.raises(InputError, match="has no checkpoint yet"):
        export(empty.path, tmp_path / "out")
    with pytest.raises(InputError, match="has no checkpoint with a held-out score; leave --best out"):
        export(empty.path, tmp_path / "out", best=True)
    assert not (tmp_path / "out").exists()


def test_options_without_effect_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--step and --best"):
        export(run.path, tmp_path / "out", step=1, best=True)
    with pytest.raises(ConfigError, match="--step and --best have no effect"):
        export(run.checkpoint(1), tmp_path / "out", best=True)
    with pytest.raises(ConfigError, match="--dtype int8"):
        export(run.path, tmp_path / "out", dtype="int8")


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_torn_weights_leave_nothing_behind(tmp_path: Path, dtype: str | None) -> None:
    torn = tmp_path / "step-1"
    (torn / "trainer").mkdir(parents=True)
    save_file({"weight": torch.ones(9)}, torn / "model.safetensors")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:-4])
    with pytest.raises(InputError, match=r"model.safetensors cannot be read .*; export another checkpoint"):
        export(torn, tmp_path / "out", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
