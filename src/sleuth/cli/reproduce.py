"""sleuth reproduce: train and evaluate the recipe of a published system, and compare with the published figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Argument, Option

from sleuth.cli.options import MAX_PROCESSES
from sleuth.cli.terminal import print_markdown, silence_transformers, stderr_console
from sleuth.errors import ConfigError, InputError, Interrupted, UserError

if TYPE_CHECKING:
    from sleuth.pipeline.runner import Pipeline
    from sleuth.reproduce.stages import ReproduceOptions, Stages
    from sleuth.train.plan import Models, Plan

REPRODUCTIONS = Path("reproductions")
TRAIN_HELP = "Training questions; repeatable. Default: NQ and HotpotQA, downloaded."
TEST_HELP = "Test questions; repeatable. Default: the seven sets of Search-R1, downloaded."
CORPUS_HELP = "Corpus to index with BM25. Default: wiki-18 with its published e5 vectors, downloaded."


def reproduce(
    name: Annotated[str, Argument(metavar="RECIPE", help="The recipe of a published system, see docs/recipes.md.")],
    out: Annotated[
        Path | None,
        Option(help="Output folder; run again to continue an interrupted run.", show_default="reproductions/RECIPE"),
    ] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting.")] = None,
    train: Annotated[list[Path] | None, Option(metavar="FILE", help=TRAIN_HELP)] = None,
    test: Annotated[list[Path] | None, Option(metavar="FILE", help=TEST_HELP)] = None,
    corpus: Annotated[Path | None, Option(metavar="FILE|FOLDER", help=CORPUS_HELP)] = None,
    index: Annotated[
        str | None, Option(metavar="FOLDER|URL", help="Index folder or retrieval server to search instead.")
    ] = None,
    nproc: Annotated[int, Option(metavar="N", min=1, max=MAX_PROCESSES, help="Processes, one per GPU.")] = 1,
    until: Annotated[str | None, Option(metavar="STAGE", help="Stop after this stage, such as training.")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print stages, disk space and expected time, then exit.")
    ] = False,
    gpu: Annotated[
        str | None, Option(help="With --dry-run: h200, a100-80, 4090, ...", show_default="this machine's device")
    ] = None,
) -> None:
    """Prepare data, train a published recipe, evaluate it, and print the result beside the published one.

    Stages whose output already exists are skipped. Run the same command again to continue an interrupted run.
    """
    from sleuth.pipeline.runner import find_stage, require_output_folder
    from sleuth.reproduce.comparison import read_markdown
    from sleuth.reproduce.published import require_published
    from sleuth.reproduce.runner import COMMAND, OPTIONS, make_pipeline
    from sleuth.reproduce.stages import Stages

    require_published(name)
    if gpu is not None and not dry_run:
        raise ConfigError(f"--gpu {gpu} has no effect without --dry-run; remove it")
    folder = (out or REPRODUCTIONS / name).absolute()
    require_output_folder(folder, OPTIONS, COMMAND)
    stages = Stages(_options(name, settings, train, test, corpus, index, nproc), folder)
    pipeline = make_pipeline(stages)
    if until is not None:
        find_stage(stages.all(), until)
    console = stderr_console()
    if dry_run:
        _preview(stages, pipeline, gpu, console)
        return
    _check(stages, until, console)
    try:
        pipeline.run(lambda line: console.print(line, soft_wrap=True), until)
    except Interrupted:
        console.print("interrupted; run the same command again to continue", soft_wrap=True)
        raise
    if until is not None:
        console.print(f"stopped after {until!r}; run the same command without --until to continue", soft_wrap=True)
        return
    print_markdown(read_markdown(folder))
    console.print(f"written to   {folder}", soft_wrap=True)


def _options(
    name: str,
    settings: list[str] | None,
    train: list[Path] | None,
    test: list[Path] | None,
    corpus: Path | None,
    index: str | None,
    nproc: int,
) -> "ReproduceOptions":
    """Check the files of the options, and make their paths absolute."""
    from sleuth.config.retrieval import backend_of
    from sleuth.corpus.questions import stream
    from sleuth.corpus.sources import require_source
    from sleuth.reproduce.stages import ReproduceOptions
    from sleuth.retrieval import manifest

    if corpus is not None and index is not None:
        raise ConfigError("--corpus has no effect with --index, which is already built; remove one of them")
    for option, files in {"--train": train, "--test": test}.items():
        for file in files or ():
            if not file.is_file():
                raise InputError(f"{option} {file} is not a file; expected a question file such as questions.jsonl")
            if next(iter(stream(file)), None) is None:
                raise InputError(f"{option} {file} holds no questions; expected at least one")
    if corpus is not None:
        if not corpus.exists():
            raise InputError(f"--corpus {corpus} does not exist; expected a corpus, or a folder of documents")
        require_source(corpus)
    if index is not None and backend_of(index) == "folder":
        manifest.read(Path(index))
        index = str(Path(index).absolute())
    return ReproduceOptions(
        recipe=name,
        settings=tuple(settings or ()),
        train=tuple(str(file.absolute()) for file in train or ()),
        test=tuple(str(file.absolute()) for file in test or ()),
        corpus=None if corpus is None else str(corpus.absolute()),
        index=index,
        nproc=nproc,
    )


def _plan(stages: "Stages", gpu: str | None) -> "tuple[Plan, Models]":
    from sleuth.cli.plan import model_shape
    from sleuth.reproduce.forecast import plan_training

    silence_transformers()
    return plan_training(stages.config(), model_shape, gpu, stages.options.nproc)


def _check(stages: "Stages", until: str | None, console: Console) -> None:
    """Print the forecast of the training; raises a UserError if memory or disk have too little room for the rest."""
    from sleuth.pipeline.runner import find_stage
    from sleuth.reproduce.forecast import describe_training, require_disk_space, with_checkpoints
    from sleuth.reproduce.stages import TRAINING
    from sleuth.train.plan import check_plan

    planned, config = stages.all(), stages.config()
    pending = [stage for stage in planned[: find_stage(planned, until or planned[-1].name)] if not stage.is_done]
    if any(stage.name == TRAINING for stage in pending):
        plan, models = _plan(stages, None)
        for line in describe_training(plan, config.train.steps):
            console.print(line, soft_wrap=True)
        check_plan(config, plan, models)
        pending = with_checkpoints(pending, config, models.policy.parameters)
    require_disk_space(pending)


def _preview(stages: "Stages", pipeline: "Pipeline", gpu: str | None, console: Console) -> None:
    """Print the stages, the disk space and the expected time; figures that need the network may be missing."""
    from sleuth.reproduce.departures import find_departures
    from sleuth.reproduce.forecast import describe_stages, describe_training, plan_disks, with_checkpoints
    from sleuth.reproduce.published import find_published
    from sleuth.train import accelerators

    if gpu is not None:
        accelerators.find(gpu)
    config, planned = stages.config(), stages.all()
    try:
        plan, models = _plan(stages, gpu)
    except UserError as error:
        forecast = [f"training     {config.train.steps:,} steps; time and checkpoints not predicted: {error}"]
    else:
        planned = with_checkpoints(planned, config, models.policy.parameters)
        forecast = describe_training(plan, config.train.steps)
    published = find_published(stages.options.recipe, config.model.policy)
    figures = "no figures on these sets" if published is None else f"{published.model}, mean EM {published.mean:.3f}"
    lines = [
        *describe_stages(planned, pipeline.describe()),
        *(f"disk         {disk}{'' if disk.needed <= disk.free else ': not enough'}" for disk in plan_disks(planned)),
        *forecast,
        f"published    {figures}",
        *(f"different    {line}" for line in find_departures(stages, published)),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
