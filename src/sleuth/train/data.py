"""Data of a run: generate its synthetic world, build its index, and load its questions."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

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
class Mixture:
    """Question files of these sizes, asked in these proportions."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def counts(self) -> list[int]:
        """Return how many questions of each file an epoch has: proportional to the weights, rounded, at least one."""
        shares = [sum(self.sizes) * weight / sum(self.weights) for weight in self.weights]
        ends = [round(end) for end in accumulate(shares)]
        return [max(1, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]

    def order(self, seed: int, epoch: int) -> list[int]:
        """Return the indices of an epoch; each file continues where the epoch before it ended, and starts again."""
        found: list[int] = []
        for number, (size, count) in enumerate(zip(self.sizes, self.counts(), strict=True)):
            begin = sum(self.sizes[:number])
            for position in range(epoch * count, (epoch + 1) * count):
                lap, within = divmod(position, size)
                found.append(begin + _file_order(size, f"{seed}/file {number}/{lap}")[within])
        random.Random(f"{seed}/{epoch}").shuffle(found)
        return found


@lru_cache(maxsize=16)
def _file_order(count: int, seed: str) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class QuestionStream:
    """The training questions, each once per epoch, or with a mixture as often as the weight of its file says.

    The order depends only on the seed and the epoch. With a curriculum, which fixes it, it also depends on outcomes.
    """

    questions: Sequence[Question]
    seed: int
    shuffle: bool
    curriculum: Curriculum | None = None
    mixture: Mixture | None = None

    @classmethod
    def of(
        cls, config: Config, files: Sequence[Sequence[Question]], curriculum: Curriculum | None = None
    ) -> "QuestionStream":
        """Build the stream of the questions of these files."""
        weights = config.data.weights
        mixture = Mixture(tuple(map(len, files)), tuple(weights)) if weights else None
        every = [question for file in files for question in file]
        return cls(every, config.train.seed, config.data.shuffle, curriculum, mixture)

    def take(self, first: int, count: int) -> list[Question]:
        """Return questions `first` to `first + count - 1` of the stream, across epochs."""
        return [self._at(position) for position in range(first, first + count)]

    def _at(self, position: int) -> Question:
        if self.mixture is not None:
            epoch, within = divmod(position, sum(self.mixture.counts()))
            return self.questions[_mixed_order(self.mixture, self.seed, epoch)[within]]
        epoch, within = divmod(position, len(self.questions))
        if self.curriculum is not None and epoch:
            return self.questions[self.curriculum.order(epoch)[within]]
        return self.questions[_order(len(self.questions), self.seed, epoch)[within] if self.shuffle else within]


_order = lru_cache(maxsize=2)(shuffled_order)
_mixed_order = lru_cache(maxsize=2)(Mixture.order)


def prepare_sources(config: Config, run: Run, observer: RunObserver, ranks: Ranks) -> RunSources:
    """Generate the world and build the index on rank 0, unless they already exist."""
    sources = RunSources.of(config, run)
    if ranks.rank == 0:
        world = run.path / "world"
        if config.world is not None and not world.exists():
            observer.begin("generating the world", 1)
            encyclopedia = World(config.world.passages, config.world.seed)
            counts = config.world.questions, config.evaluate.questions
            write_world(encyclopedia, world, *counts, mixture=config.world.mixture)
        if sources.corpus is not None and config.retrieval.replay is None and not sources.index.exists():
            observer.begin("indexing", 1)
            plan = index.plan_index(config.retrieval)
            index.build(sources.corpus, sources.index, plan, device=config.retrieval.device)
    ranks.barrier("the index")
    return sources


def load_questions(
    config: Config, sources: RunSources, observer: RunObserver
) -> tuple[list[list[Question]], list[Question]]:
    """Load the training questions of each file and the held-out ones; warn about overlap and wordless answers."""
    files = [list(questions.load(file)) for file in sources.train]
    training = [question for file in files for question in file]
    held_out = [question for file in sources.test for question in questions.load(file)][: config.evaluate.questions]
    for warning in (overlap_warning(training, held_out), warn_wordless([*training, *held_out])):
        if warning:
            observer.log(warning)
    return files, held_out


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
