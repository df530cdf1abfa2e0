"""Data of a run: generate its synthetic world, build its index, and load its questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sleuth.agent.loading import RunSources
from sleuth.config.tree import Config
from sleuth.corpus import questions
from sleuth.corpus.datasets.merge import question_key
from sleuth.records import Question
from sleuth.retrieval import index
from sleuth.reward.answers import warn_wordless
from sleuth.runs.run import Run
from sleuth.synthesis.world.world import World, write_world
from sleuth.train.curriculum import Curriculum, shuffled_order
from sleuth.train.observer import RunObserver
from sleuth.train.ranks import Ranks


@dataclass(frozen=True, slots=True)
class QuestionStream:
    """The training questions, each once per epoch.

    The order depends only on the seed and the epoch. With a curriculum, which fixes it, it also depends on outcomes.
    """

    questions: Sequence[Question]
    seed: int
    shuffle: bool
    curriculum: Curriculum | None = None

    def take(self, first: int, count: int) -> list[Question]:
        """Return questions `first` to `first + count - 1` of the stream, across epochs."""
        return [self._at(position) for position in range(first, first + count)]

    def _at(self, position: int) -> Question:
        epoch, within = divmod(position, len(self.questions))
        if self.curriculum is not None and epoch:
            return self.questions[self.curriculum.order(epoch)[within]]
        return self.questions[_order(len(self.questions), self.seed, epoch)[within] if self.shuffle else within]


_order = lru_cache(maxsize=2)(shuffled_order)


def prepare_sources(config: Config, run: Run, observer: RunObserver, ranks: Ranks) -> RunSources:
    """Generate the world and build the index on rank 0, unless they already exist."""
    sources = RunSources.of(config, run)
    if ranks.rank == 0:
        world = run.path / "world"
        if config.world is not None and not world.exists():
            observer.begin("generating the world", 1)
            encyclopedia = World(config.world.passages, config.world.seed)
            write_world(encyclopedia, world, config.world.questions, config.evaluate.questions)
        if sources.corpus is not None and config.retrieval.replay is None and not sources.index.exists():
            observer.begin("indexing", 1)
            plan = index.plan_index(config.retrieval)
            index.build(sources.corpus, sources.index, plan, device=config.retrieval.device)
    ranks.barrier("the index")
    return sources


def load_questions(config: Config, sources: RunSources, observer: RunObserver) -> tuple[list[Question], list[Question]]:
    """Load the training and held-out questions; warn about overlap and about answers without words."""
    training, held_out = _load(sources.train), _load(sources.test)[: config.evaluate.questions]
    for warning in (overlap_warning(training, held_out), warn_wordless([*training, *held_out])):
        if warning:
            observer.log(warning)
    return training, held_out


def _load(files: Sequence[Path]) -> list[Question]:
    return [question for file in files for question in questions.load(file)]


def overlap_warning(training: Sequence[Question], held_out: Sequence[Question]) -> str | None:
    """Return a warning if any held-out question is also in the training set."""
    keys = {question_key(question.question) for question in training}
    count = sum(question_key(question.question) in keys for question in held_out)
    if not count:
        return None
    return (
        f"{count:,} of the {len(held_out):,} held-out questions are also in the training set, so they measure "
        "memorization; remove them from data.train with: sleuth data prepare --test"
    )
