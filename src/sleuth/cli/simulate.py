"""sleuth simulate: predict throughput, idle shares and staleness of a run on several GPUs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from sleuth.cli.options import MAX_SEED
from sleuth.cli.plan import model_shape, planned_device, read_config
from sleuth.cli.terminal import echo, print_markdown, silence_transformers
from sleuth.errors import ConfigError

if TYPE_CHECKING:
    from sleuth.cluster.rate_source import RateSource
    from sleuth.cluster.scenario import Scenario

MAX_GPUS = 4096


def simulate(
    name: Annotated[str, Argument(metavar="RECIPE|MODEL", help="As for sleuth plan.")],
    trainers: Annotated[int, Option(metavar="N", min=1, max=MAX_GPUS, help="Trainer processes, one per GPU.")] = 1,
    rollouts: Annotated[
        int | None,
        Option(metavar="M", min=1, max=MAX_GPUS, help="Rollout workers. Default: the trainers also generate."),
    ] = None,
    mode: Annotated[Literal["sync", "ahead", "async"] | None, Option(help="Default: train.mode of the recipe.")] = None,
    staleness: Annotated[
        int | None, Option(metavar="K", min=0, max=64, help="Maximum token age in weight versions; above 0: async.")
    ] = None,
    gpu: Annotated[
        str | None, Option(help="h200, a100-80, 4090, t4, ..., or cpu.", show_default="this machine's device")
    ] = None,
    search_seconds: Annotated[
        float | None, Option(min=0, max=3600, help="Latency of a search.", show_default="as measured or assumed")
    ] = None,
    runs: Annotated[
        list[Path] | None, Option("--from", metavar="RUN", help="Fit the rates to this run; repeatable.")
    ] = None,
    rates_file: Annotated[Path | None, Option("--rates", metavar="FILE", help="JSON file of rates.")] = None,
    recommended: Annotated[
        list[int] | None,
        Option("--recommend", metavar="GPUS", min=1, max=MAX_GPUS, help="Find the best placement; repeatable."),
    ] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="A setting; repeatable.")] = None,
    steps: Annotated[int, Option(min=1, max=1000, help="Training steps to simulate.")] = 12,
    seed: Annotated[int, Option(min=0, max=MAX_SEED, help="Seed of the episodes.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Predict trajectories per second, idle shares and staleness for a number of trainers and rollout workers."""
    config = read_config(name, settings or [])
    from sleuth.cluster.rate_source import RateSource
    from sleuth.cluster.scenario import describe_scenario
    from sleuth.runs.run import Run
    from sleuth.train.plan import Models

    silence_transformers()
    device = planned_device(gpu)
    opened = tuple(Run.open(path) for path in runs or [])
    source = RateSource(config, device, Models.of(config, model_shape), opened, rates_file, search_seconds)
    if mode is None and staleness is not None:
        mode = "async" if staleness else "sync"
    scenario = describe_scenario(
        config, source.device_type, trainers=trainers, rollouts=rollouts, mode=mode, staleness=staleness
    )
    scenario = replace(scenario, steps=steps, seed=seed)
    if recommended:
        _recommend(name, recommended, scenario, source, as_json)
    else:
        _predict(name, scenario, source, as_json)


def _predict(name: str, scenario: "Scenario", source: "RateSource", as_json: bool) -> None:
    from sleuth.cluster import simulation_report
    from sleuth.cluster.rates import rates_row
    from sleuth.cluster.simulation import predict

    rates = source.rates(scenario.trainers, scenario.rollouts is not None)
    found = predict(scenario, rates)
    if as_json:
        row = simulation_report.prediction_row(scenario, found)
        echo(json.dumps({**row, "rates": rates_row(rates)}, indent=2))
    else:
        print_markdown(simulation_report.prediction_markdown(name, scenario, rates, found))


def _recommend(name: str, gpus: list[int], scenario: "Scenario", source: "RateSource", as_json: bool) -> None:
    from sleuth.cluster import simulation_report
    from sleuth.cluster.recommendation import recommend
    from sleuth.cluster.scenario import DEFAULT_STALENESS

    if scenario.trainers != 1 or scenario.rollouts is not None:
        raise ConfigError("--recommend chooses the number of trainers and rollouts; remove --trainers and --rollouts")
    staleness = max(1, scenario.staleness) if scenario.mode == "async" else DEFAULT_STALENESS
    found = [each for count in gpus for each in recommend(count, scenario, source.rates_that_fit, staleness)]
    if as_json:
        rows = [simulation_report.prediction_row(each.scenario, each.prediction) for each in found]
        echo(json.dumps({"placements": rows}, indent=2))
    else:
        origin = source.rates(1, separate=False).source
        print_markdown(simulation_report.recommendation_markdown(name, origin, found))
