"""The examples of --shots: questions shown with their answers, none of which is asked."""

from pathlib import Path
from typing import TYPE_CHECKING

from sleuth.errors import ConfigError, InputError

if TYPE_CHECKING:
    from sleuth.agent.loading import AgentSpec, RemoteAgentSpec
    from sleuth.evaluate.benchmarks import Benchmark
    from sleuth.records import Question

SHOTS = 4


def examples_of(
    shots: str | None, spec: "AgentSpec | RemoteAgentSpec", benchmark: "Benchmark", seed: int
) -> "tuple[Question, ...]":
    """Questions to show with their answers; none of the suites is among them, asked or not, in whatever spelling."""
    from sleuth.agent import methods
    from sleuth.corpus.datasets.merge import question_key
    from sleuth.corpus.questions import load

    if shots is None:
        methods.make_method(spec.config.agent)
        return ()
    file, count = _shots(shots)
    if file is None and not spec.training:
        raise InputError(f"--shots {shots} names no file, and a model has no questions of its own; give FILE:{count}")
    kept_out = {question_key(question.question) for question in benchmark.whole}
    files = spec.training if file is None else (file,)
    pool = [each for path in files for each in load(path) if question_key(each.question) not in kept_out]
    chosen = methods.draw_shots(pool, count, seed)
    methods.make_method(spec.config.agent, chosen)
    return chosen


def _shots(shots: str) -> tuple[Path | None, int]:
    """The file, where one is named, and how many of it."""
    name, _, count = shots.rpartition(":")
    if count.isdigit():
        if not int(count):
            raise ConfigError(f"--shots {shots} asks for no examples; leave it out, or give at least 1")
        return (Path(name) if name else None), int(count)
    return Path(shots), SHOTS
