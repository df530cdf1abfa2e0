"""The stages of `sleuth reproduce`: questions, corpus and index, training, evaluation, comparison."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth.config import recipe
from sleuth.config.retrieval import backend_of
from sleuth.config.tree import Config
from sleuth.corpus.datasets.public import COLLECTIONS, data_folder
from sleuth.errors import ConfigError
from sleuth.pipeline.stage import Stage
from sleuth.reproduce.published import SETS, SUITE
from sleuth.retrieval import manifest
from sleuth.retrieval.staging import source_fingerprint
from sleuth.runs.checksums import fingerprint

INDEX, RUN, EVALUATION, JSON, MARKDOWN = "index", "run", "evaluation", "reproduction.json", "reproduction.md"
TRAINING, COMPARISON = "training", "comparison"  # stages
TRAINING_SETS = ("nq", "hotpotqa")
GB = 1_000_000_000
# wiki-18 has 21,015,324 passages. The corpus is its size on disk when decompressed, which the download stays below.
CORPUS_BYTES, VECTOR_BYTES, IMPORTED_BYTES = 14 * GB, 65 * GB, (14 + 33) * GB
# Settings that an option of the command determines.
OPTION_OF = {
    "data.train": "--train",
    "data.test": "--test",
    "data.corpus": "--corpus",
    "retrieval.index": "--index or --corpus",
}


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """The user's options with absolute paths; empty `train` and `test` stand for the public sets."""

    recipe: str
    settings: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    corpus: str | None = None
    index: str | None = None
    nproc: int = 1

    def as_json(self) -> dict[str, Any]:
        """The options, and what identifies the content of the files, so that a changed file is noticed."""
        files = {path: fingerprint(Path(path)) for path in (*self.train, *self.test)}
        corpus = None if self.corpus is None else source_fingerprint(Path(self.corpus))
        is_folder = self.index is not None and backend_of(self.index) == "folder"
        index = manifest.fingerprint(Path(self.index)) if self.index is not None and is_folder else None
        is_local = self.train and self.test and (self.corpus is not None or self.index is not None)
        data = None if is_local else str(data_folder())
        return {**asdict(self), "data": data, "content": {**files, "corpus": corpus, "index": index}}


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages for a user's options and an output folder."""

    options: ReproduceOptions
    folder: Path

    def all(self) -> list[Stage]:
        return [*self._questions(), *self._search(), *self._training(), self._evaluation(), self._comparison()]

    def settings(self) -> list[str]:
        """The overrides of the recipe: the user's, and the places of the data."""
        given = [override.partition("=")[0].strip() for override in self.options.settings]
        if taken := [key for key in given if key in OPTION_OF]:
            raise ConfigError(f"--set {taken[0]} has no effect here; use {OPTION_OF[taken[0]]}")
        places = {"data.train": self.train, "data.test": self.test, "retrieval.index": self.index}
        return [*self.options.settings, *recipe.overrides(places)]

    def config(self) -> Config:
        return recipe.load(self.options.recipe, self.settings())

    @property
    def prepared(self) -> Path:
        return data_folder() / SUITE

    @property
    def train(self) -> list[str]:
        return list(self.options.train) or [str(self.prepared / "train" / "questions.jsonl")]

    @property
    def test(self) -> list[str]:
        return list(self.options.test) or [str(self.prepared / "test" / "questions.jsonl")]

    @property
    def index(self) -> str:
        """The index folder or address that the run searches."""
        if self.options.index is not None:
            return self.options.index
        return str(self.folder / INDEX if self.options.corpus is not None else data_folder() / "wiki18-e5")

    def _questions(self) -> Iterator[Stage]:
        """Both stages are skipped for local files, which are used as they are."""
        train, test = self.prepared / "train", self.prepared / "test"
        if not self.options.train:
            yield Stage(
                "training questions",
                "download and merge NQ and HotpotQA",
                (train,),
                ("data", "prepare", *TRAINING_SETS, "--split", "train", "--out", str(train)),
                space=GB // 2,
            )
        if not self.options.test:
            yield Stage(
                "test questions",
                "download the seven test sets",
                (test,),
                ("data", "prepare", *SETS, "--split", "test", "--seed", "0", "--out", str(test)),
                space=GB // 4,
            )

    def _search(self) -> Iterator[Stage]:
        if self.options.index is not None:
            return
        target = Path(self.index)
        if self.options.corpus is not None:
            build = ("index", "build", self.options.corpus, "--out", str(target))
            yield Stage("index", "index the corpus with BM25", (target,), build)
            return
        files = []
        for name, purpose, space in (
            ("wiki18", "download the passages of wiki-18", CORPUS_BYTES),
            ("wiki18-e5", "download their e5 vectors", VECTOR_BYTES),
        ):
            wanted = COLLECTIONS[name]
            files.append(data_folder() / wanted.repo / (wanted.joined or wanted.patterns[0]))
            title = "corpus" if wanted.joined is None else "vectors"
            yield Stage(title, purpose, (files[-1],), ("data", "download", name), replaced_by=target, space=space)
        words = ("index", "import", "--faiss", str(files[1]), "--corpus", str(files[0]), "--out", str(target))
        yield Stage("index", "convert them to an index of fp16 vectors", (target,), words, space=IMPORTED_BYTES)

    def _training(self) -> Iterator[Stage]:
        options, run = self.options, self.folder / RUN
        processes = ("--nproc", str(options.nproc)) if options.nproc > 1 else ()
        changes = (word for each in self.settings() for word in ("--set", each))
        yield Stage(
            TRAINING,
            "train with the recipe",
            (run / "summary.json",),
            ("train", options.recipe, "--out", str(run), *changes, *processes),
            begun=run / "manifest.json",
            resume=("train", "--resume", str(run), *processes),
            reads=(*map(Path, (*self.train, *self.test)), Path(self.index)),
        )

    def _evaluation(self) -> Stage:
        out, suite = self.folder / EVALUATION, (SUITE, "--data", str(self.prepared / "test"))
        files = tuple(word for path in self.options.test for word in ("--suite", path))
        words = ("evaluate", str(self.folder / RUN), *(files or ("--suite", *suite)), "--out", str(out))
        return Stage("evaluation", "answer the test questions", (out / "results.json",), words)

    def _comparison(self) -> Stage:
        reads = (self.folder / RUN, self.folder / EVALUATION)
        outputs = (self.folder / JSON, self.folder / MARKDOWN)
        return Stage(COMPARISON, "compare with the published figures", outputs, reads=reads)
