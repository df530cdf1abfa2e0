"""`sleuth reproduce` as a pipeline."""

from sleuth.pipeline.runner import Pipeline
from sleuth.reproduce.comparison import write_comparison
from sleuth.reproduce.stages import COMPARISON, Stages

COMMAND = "sleuth reproduce"
OPTIONS = "reproduce.json"
LAYOUT = 1  # of the output folder; raise it if stages or their outputs change


def make_pipeline(stages: Stages) -> Pipeline:
    """Return the pipeline of these stages."""
    return Pipeline(
        command=COMMAND,
        folder=stages.folder,
        options_file=OPTIONS,
        layout=LAYOUT,
        options=stages.options.as_json(),
        stages=stages.all,
        actions={COMPARISON: lambda: write_comparison(stages)},
    )
