"""sleuth plan: predict the memory and time of a training step, without loading weights."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth import hub
from sleuth.cli.options import MAX_PROCESSES
from sleuth.cli.terminal import echo, print_markdown, silence_transformers
from sleuth.config import recipe
from sleuth.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sleuth.config.tree import Config
    from sleuth.train.accelerators import Accelerator

DOES_NOT_FIT = 1


def plan(
    name: Annotated[
        str,
        Argument(metavar="RECIPE|MODEL", help="A recipe, a model folder, a hub name, or a shape such as qwen2.5-3b."),
    ],
    gpu: Annotated[
        str | None, Option(help="h200, a100-80, 4090, t4, ..., or cpu.", show_default="this machine's device")
    ] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="A setting; repeatable.")] = None,
    nproc: Annotated[int, Option(metavar="N", min=1, max=MAX_PROCESSES, help="Processes, one per GPU.")] = 1,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Predict memory and time of a training step; if it does not fit, suggest settings and exit with code 1."""
    config = read_config(name, settings or [])
    from sleuth.train import plan_report
    from sleuth.train.plan import Models, make_plan

    silence_transformers()
    device = planned_device(gpu)
    found = make_plan(config, device, Models.of(config, model_shape), ranks=nproc)
    if as_json:
        echo(json.dumps(plan_report.record(found), indent=2))
    else:
        print_markdown(plan_report.markdown(found))
    if not found.fits:
        raise typer.Exit(DOES_NOT_FIT)


def read_config(name: str, settings: list[str]) -> "Config":
    """Read a recipe, or the default settings with this model."""
    # `quickstart` names a recipe and a model: the recipe, which has that model.
    if name in recipe.shipped() or name.endswith(".toml"):
        return recipe.load(name, settings)
    return recipe.compose({"model": {"policy": name}, "world": {}}, settings)


def model_shape(name: str) -> "PretrainedConfig":
    """Return the config of a model without its weights: published shape, folder, or config.json from the Hub."""
    from sleuth.model.shapes import SHAPES, published_shape, shape_of_folder

    known = name.rpartition("/")[2].lower().removesuffix("-instruct")
    if Path(name).is_dir() or not (known in SHAPES or hub.is_hub_name(name)):
        if Path(name).is_dir() and (Path(name) / "config.json").is_file():
            return shape_of_folder(Path(name))
        return shape_of_folder(recipe.resolve_policy(name))
    if known in SHAPES:
        return published_shape(known)
    return shape_of_folder(hub.download_model(name, ["config.json"], "give a local folder"))


def planned_device(gpu: str | None) -> "Accelerator":
    """Return the data sheet of a GPU by its name, or of the device of this machine."""
    from sleuth.model.policy import select_device
    from sleuth.train import accelerators

    if gpu is not None:
        return accelerators.find(gpu)
    device = select_device()
    found = accelerators.identify(device)
    if found is None:
        raise ConfigError(
            f"this GPU is unknown; choose the most similar one with --gpu: {', '.join(accelerators.GPUS)}"
        )
    return found
