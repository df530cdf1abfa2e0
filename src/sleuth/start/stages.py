"""The stages of `sleuth start`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth.pipeline.stage import Stage
from sleuth.start.sizes import RECIPE, Sizes

DOCUMENTS, QUESTIONS, CORPUS, INDEX = "documents", "questions.jsonl", "corpus.jsonl", "index"
CHECK, PARTS, PRACTICE, PLAN, RUN, EVALUATIONS = "check", "parts", "practice.jsonl", "plan.json", "run", "evaluations"
TRACES, COLD_START, DIFFICULTY = "traces", "cold-start", "difficulty.jsonl"
SPLIT = "train=0.7,validation=0.1,test=0.2"
WITHHELD = 0.2  # training questions shown again without their evidence, so that the agent learns when to abstain
PRACTICE_QUESTIONS = 5000  # questions by rules, only for the cold start: none of them is unanswerable


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The user's options; a folder can be continued only with the same ones."""

    documents: str
    model: str
    teacher: str | None = None
    teacher_model: str | None = None
    key_env: str | None = None
    questions: int = 2000
    unanswerable: float = 0.1
    steps: int | None = None
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_stages(options: StartOptions, folder: Path, sizes: Sizes) -> list[Stage]:
    """Return all stages in order."""
    return list(Stages(options, folder, sizes).all())


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages for a user's options, an output folder, and the settings chosen for the model."""

    options: StartOptions
    folder: Path
    sizes: Sizes

    def all(self) -> Iterator[Stage]:
        yield from self._data()
        yield Stage(
            "recipe",
            "choose the settings for this model and machine",
            (self.folder / RECIPE,),
            reads=self._paths(PARTS),
        )
        yield self._stage(
            "plan", "predict the memory and time of a training step", PLAN,
            "plan", self._at(RECIPE), "--set", f"model.policy={self.options.model}", "--json", capture=True,
        )  # fmt: skip
        yield from self._demonstrations()
        yield from self._training()
        yield from self._evaluations()
        yield Stage(
            "report",
            "write the report",
            self._paths("report.html", "summary.json"),
            reads=self._paths(DOCUMENTS, QUESTIONS, PARTS, DIFFICULTY, RUN, EVALUATIONS),
        )

    def _data(self) -> Iterator[Stage]:
        options, at, seed = self.options, self._at, str(self.options.seed)
        yield self._stage(
            "documents", "read and index all documents", DOCUMENTS,
            "index", "build", options.documents, "--out", at(DOCUMENTS),
        )  # fmt: skip
        yield Stage(
            "questions",
            "make questions with evidence, some of them about held-out documents",
            self._paths(QUESTIONS, CORPUS),
            (
                "data", "make", at(DOCUMENTS), "--out", at(QUESTIONS), "--questions", str(options.questions),
                "--unanswerable", f"{options.unanswerable:g}", "--corpus-out", at(CORPUS), "--seed", seed,
                *self._teacher_words("--teacher"),
            ),
        )  # fmt: skip
        yield self._stage(
            "index", "index the documents that are not held out", INDEX,
            "index", "build", at(CORPUS), "--out", at(INDEX),
        )  # fmt: skip
        yield self._stage(
            "check", "check that the answers are in the index and that search finds them", CHECK,
            "index", "check", at(INDEX), "--questions", at(QUESTIONS), "--out", at(CHECK),
        )  # fmt: skip
        yield self._stage(
            "parts", "split the questions by document", PARTS,
            "data", "split", at(QUESTIONS), "--index", at(DOCUMENTS), "--out", at(PARTS), "--parts", SPLIT,
            "--seed", seed,
        )  # fmt: skip
        yield self._stage(
            "practice", "make more questions by rules, only for the demonstrations", PRACTICE,
            "data", "make", at(INDEX), "--out", at(PRACTICE), "--rules", "documents",
            "--name", "practice", "--questions", str(PRACTICE_QUESTIONS), "--without", at(PARTS, "validation.jsonl"),
            "--without", at(PARTS, "test.jsonl"), "--not-in", at(PARTS, "train.jsonl"), "--seed", seed, optional=True,
        )  # fmt: skip

    def _demonstrations(self) -> Iterator[Stage]:
        """Demonstrations of both kinds from each file of questions, and those of the teacher."""
        options, sizes, at = self.options, self.sizes, self._at
        sources = {"train": at(PARTS, "train.jsonl"), "practice": at(PRACTICE)}
        abstain = ("--abstain", "--withhold", f"{WITHHELD:g}") if options.unanswerable else ()
        for name, questions in sources.items():
            common = ("--questions", questions, "--index", at(INDEX), "--k", str(sizes.k), *abstain)
            yield self._stage(
                f"demonstrations of search ({name})", "write searches for the gold passages",
                self._traces(name, "search"),
                "traces", "gold", *common, "--out", at(self._traces(name, "search")), "--prompt", sizes.prompt,
                optional=name == "practice",
            )  # fmt: skip
            yield self._stage(
                f"demonstrations of reading ({name})", "write answers from retrieved documents",
                self._traces(name, "reading"),
                "traces", "answers", *common, "--out", at(self._traces(name, "reading")), "--method", "rag",
                optional=name == "practice",
            )  # fmt: skip
        if options.teacher is not None:
            yield self._stage(
                "demonstrations by the teacher", "let the teacher search, and keep its correct episodes",
                self._traces("teacher", "search"),
                "traces", "sample", options.teacher, "--questions", at(PARTS, "train.jsonl"), "--index", at(INDEX),
                "--out", at(self._traces("teacher", "search")), "--messages", "--samples", "2",
                *_settings(self._agent), *self._teacher_words(),
                *(("--min-reward", "1", "--set", "reward.abstain=0") if options.unanswerable else ()), optional=True,
            )  # fmt: skip

    def _training(self) -> Iterator[Stage]:
        options, sizes, at = self.options, self.sizes, self._at
        yield self._stage(
            "cold start", "train on the demonstrations", COLD_START,
            "sft", at(RECIPE), "--model", options.model,
            *(word for file in self._all_traces() for word in ("--traces", at(file))),
            "--out", at(COLD_START), "--epochs", str(sizes.epochs), "--learning-rate", f"{sizes.sft_rate:g}",
            "--pack-tokens", str(sizes.pack_tokens),
        )  # fmt: skip
        yield self._stage(
            "difficulty", "measure how often the agent fails each training question", DIFFICULTY,
            "data", "difficulty", at(PARTS, "train.jsonl"), at(COLD_START), "--index", at(INDEX),
            "--out", at(DIFFICULTY), "--samples", str(sizes.difficulty_samples), *_settings(self._agent),
        )  # fmt: skip
        yield Stage(
            "training",
            "train with reinforcement learning",
            (self.folder / RUN / "summary.json",),
            ("train", at(RECIPE), "--out", at(RUN)),
            begun=self.folder / RUN / "manifest.json",
            resume=("train", "--resume", at(RUN)),
            reads=self._paths(DIFFICULTY, COLD_START, INDEX, PARTS),
        )

    def _evaluations(self) -> Iterator[Stage]:
        options, sizes = self.options, self.sizes
        rag = ("--method", "rag", "--index", self._at(INDEX), *_settings(sizes.rag))
        yield self._evaluation("alone", "model alone", options.model, "--method", "direct", *_settings(sizes.alone))
        yield self._evaluation("rag", "model with RAG", options.model, *rag)
        yield self._evaluation("rag-cold-start", "RAG after the cold start", *self.agent(trained=False))
        yield self._evaluation("trained", "trained agent", *self.agent(trained=True))

    def agent(self, *, trained: bool) -> tuple[str, ...]:
        """The model and options of the trained agent, or of RAG after the cold start, for `ask` and others."""
        if trained:
            return (self._at(RUN),)
        rag = ("--method", "rag", "--index", self._at(INDEX), *_settings((*self.sizes.rag, *self._abstain)))
        return (self._at(COLD_START), *rag)

    def _evaluation(self, name: str, label: str, model: str, *words: str) -> Stage:
        outputs = (self.folder / EVALUATIONS / name / "results.json",)
        command = ("evaluate", model, "--suite", self._at(PARTS, "test.jsonl"), "--out", self._at(EVALUATIONS, name))
        return Stage(f"evaluation: {label}", "answer the test questions", outputs, (*command, *words))

    def _stage(
        self, name: str, purpose: str, output: str, *words: str, capture: bool = False, optional: bool = False
    ) -> Stage:
        return Stage(name, purpose, (self.folder / output,), words, capture=capture, optional=optional)

    def _traces(self, source: str, kind: str) -> str:
        return f"{TRACES}-{source}-{kind}.jsonl"

    def _all_traces(self) -> list[str]:
        found = [self._traces(source, kind) for source in ("train", "practice") for kind in ("search", "reading")]
        if self.options.teacher is not None:
            found.append(self._traces("teacher", "search"))
        return [file for file in found if not _is_empty(self.folder / file)]

    def _teacher_words(self, option: str | None = None) -> list[str]:
        """Options that name the teacher; without `option`, the teacher itself is an argument of the command."""
        options, words = self.options, list[str]()
        given = {"--model": options.teacher_model, "--key-env": options.key_env}
        if option is not None:
            given = {option: options.teacher, **given}
        for name, value in given.items():
            words += [name, value] if value is not None else []
        return words

    @property
    def _abstain(self) -> tuple[str, ...]:
        return ("agent.abstain=true",) if self.options.unanswerable else ()

    @property
    def _agent(self) -> tuple[str, ...]:
        return (*self.sizes.agent, *self._abstain)

    def _paths(self, *names: str) -> tuple[Path, ...]:
        return tuple(self.folder / name for name in names)

    def _at(self, *names: str) -> str:
        return str(self.folder.joinpath(*names))


def _is_empty(path: Path) -> bool:
    return path.exists() and not path.stat().st_size


def _settings(values: Sequence[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]
