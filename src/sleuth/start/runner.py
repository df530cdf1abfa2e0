"""`sleuth start` as a pipeline: its options, its output folder, and the stages that it runs itself."""

from pathlib import Path

from sleuth.errors import InputError
from sleuth.pipeline import runner as pipeline
from sleuth.pipeline.runner import Log, Pipeline
from sleuth.start.report import write_report
from sleuth.start.sizes import Sizes, write_recipe
from sleuth.start.stages import StartOptions, plan_stages

COMMAND = "sleuth start"
OPTIONS = "start.json"
LAYOUT = 2  # of the output folder; raise it if stages or their outputs change


def start(options: StartOptions, folder: Path, sizes: Sizes, log: Log, until: str | None = None) -> None:
    """Run the stages whose outputs are missing, in order, up to `until`; raises InputError if a stage fails."""
    require_output_folder(options, folder)
    make_pipeline(options, folder, sizes).run(log, until)


def make_pipeline(options: StartOptions, folder: Path, sizes: Sizes) -> Pipeline:
    """Return the pipeline for a user's options, an output folder, and the settings chosen for the model."""
    return Pipeline(
        command=COMMAND,
        folder=folder,
        options_file=OPTIONS,
        layout=LAYOUT,
        options=options.as_json(),
        stages=lambda: plan_stages(options, folder, sizes),
        actions={
            "recipe": lambda: write_recipe(folder, sizes, abstain=options.unanswerable > 0, seed=options.seed),
            "report": lambda: write_report(folder, options, sizes),
        },
    )


def require_output_folder(options: StartOptions, folder: Path) -> None:
    """Raise InputError if the output folder is a file, holds something else, or lies among the documents."""
    if not folder.is_file() and folder.resolve().is_relative_to(Path(options.documents).resolve()):
        raise InputError(
            f"the output folder {folder} lies in the folder of documents {options.documents}, so its files would count "
            "as documents; give an --out elsewhere"
        )
    pipeline.require_output_folder(folder, OPTIONS, COMMAND)
