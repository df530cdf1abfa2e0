"""The stages of `sleuth start`: each is a command of its own, whose output is not made again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth.start.sizes import RECIPE, Sizes

DOCUMENTS, QUESTIONS, CORPUS, INDEX = "documents", "questions.jsonl", "corpus.jsonl", "index"
CHECK, PARTS, PLAN, RUN, EVALUATIONS = "check", "parts", "plan.json", "run", "evaluations"
SEARCH_TRACES, READING_TRACES, COLD_START = "traces-search.jsonl", "traces-reading.jsonl", "cold-start"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What the user chose; a folder is only continued with the same options."""

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


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of the way, done when all of `outputs` exist.

    `words` are those of a `sleuth` command; `resume` those that continue it if `begun` exists. A stage without words is
    done by `sleuth start` itself.
    """

    name: str
    purpose: str
    outputs: tuple[Path, ...]
    words: tuple[str, ...] = ()
    begun: Path | None = None
    resume: tuple[str, ...] = ()
    capture: bool = False  # the output of the command is the file

    @property
    def is_done(self) -> bool:
        return all(output.exists() for output in self.outputs)

    @property
    def command(self) -> tuple[str, ...]:
        return self.resume if self.begun is not None and self.begun.exists() else self.words


def plan_stages(options: StartOptions, folder: Path, sizes: Sizes) -> list[Stage]:
    """Return all stages in order."""

    def at(*names: str) -> str:
        return str(folder.joinpath(*names))

    evaluations = folder / EVALUATIONS
    test = ("--suite", at(PARTS, "test.jsonl"))
    return [
        Stage(
            "documents",
            "read and index all documents",
            (folder / DOCUMENTS,),
            ("index", "build", options.documents, "--out", at(DOCUMENTS)),
        ),
        Stage(
            "questions",
            "make questions with evidence, some of them about documents that are held out",
            (folder / QUESTIONS, folder / CORPUS),
            _question_words(options, at(DOCUMENTS), at(QUESTIONS), at(CORPUS)),
        ),
        Stage(
            "index",
            "index the documents that are not held out",
            (folder / INDEX,),
            ("index", "build", at(CORPUS), "--out", at(INDEX)),
        ),
        Stage(
            "check",
            "check that the answers are in the index and that search finds them",
            (folder / CHECK,),
            ("index", "check", at(INDEX), "--questions", at(QUESTIONS), "--out", at(CHECK)),
        ),
        Stage(
            "parts",
            "split the questions by document",
            (folder / PARTS,),
            ("data", "split", at(QUESTIONS), "--index", at(DOCUMENTS), "--out", at(PARTS), "--seed", str(options.seed)),
        ),
        Stage("recipe", "choose the settings for this model and machine", (folder / RECIPE,)),
        Stage(
            "plan",
            "predict memory and time",
            (folder / PLAN,),
            ("plan", at(RECIPE), "--set", f"model.policy={options.model}", "--json"),
            capture=True,
        ),
        Stage(
            "demonstrations of search",
            "write searches for the gold passages",
            (folder / SEARCH_TRACES,),
            ("traces", "gold", "--questions", at(PARTS, "train.jsonl"), "--index", at(INDEX), "--k", str(sizes.k),
             "--out", at(SEARCH_TRACES), "--prompt", sizes.prompt),
        ),
        Stage(
            "demonstrations of reading",
            "write answers below retrieved documents",
            (folder / READING_TRACES,),
            ("traces", "answers", "--questions", at(PARTS, "train.jsonl"), "--index", at(INDEX), "--method", "rag",
             "--out", at(READING_TRACES), "--k", str(sizes.k)),
        ),
        Stage(
            "cold start",
            "train on the demonstrations",
            (folder / COLD_START,),
            ("sft", at(RECIPE), "--model", options.model, "--traces", at(SEARCH_TRACES), "--traces", at(READING_TRACES),
             "--out", at(COLD_START), "--epochs", str(sizes.epochs), "--learning-rate", f"{sizes.sft_rate:g}",
             "--pack-tokens", str(sizes.pack_tokens)),
        ),
        Stage(
            "training",
            "train with reinforcement learning",
            (folder / RUN / "summary.json",),
            ("train", at(RECIPE), "--out", at(RUN)),
            begun=folder / RUN / "manifest.json",
            resume=("train", "--resume", at(RUN)),
        ),
        Stage(
            "model alone",
            "evaluate the model without documents",
            (evaluations / "alone" / "results.json",),
            ("evaluate", options.model, *test, "--method", "direct", "--out", at(EVALUATIONS, "alone"),
             *_settings(sizes.alone)),
        ),
        Stage(
            "model with RAG",
            "evaluate the model with the documents that a search for the question finds",
            (evaluations / "rag" / "results.json",),
            ("evaluate", options.model, *test, "--method", "rag", "--index", at(INDEX), "--out",
             at(EVALUATIONS, "rag"), *_settings(sizes.rag)),
        ),
        Stage(
            "trained agent",
            "evaluate the trained agent on the same questions",
            (evaluations / "trained" / "results.json",),
            ("evaluate", at(RUN), *test, "--out", at(EVALUATIONS, "trained")),
        ),
        Stage("report", "write the page with the result", (folder / "report.html", folder / "summary.json")),
    ]  # fmt: skip


def _question_words(options: StartOptions, documents: str, questions: str, corpus: str) -> tuple[str, ...]:
    words = ["data", "make", documents, "--out", questions, "--questions", str(options.questions)]
    words += ["--unanswerable", f"{options.unanswerable:g}", "--corpus-out", corpus, "--seed", str(options.seed)]
    for option, value in (
        ("--teacher", options.teacher),
        ("--model", options.teacher_model),
        ("--key-env", options.key_env),
    ):
        words += [option, value] if value is not None else []
    return tuple(words)


def _settings(values: Sequence[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]
