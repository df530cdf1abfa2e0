"""The desk of the viewer: what is asked of it, found in the library and answered as plain values."""

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from sleuth.http.responses import HttpProblem
from sleuth.records import StopReason
from sleuth.runs.run import STEP
from sleuth.view import asked, comparison, follow, listing, questions
from sleuth.view.archive import PATIENCE, Archive, At
from sleuth.view.comparison import Chosen, Comparisons
from sleuth.view.library import DONE, Kind, Library, Tree, document, standing
from sleuth.view.roots import MANIFEST, Shown
from sleuth.view.trajectory import neighbours, whole
from sleuth.view.vocabulary import Vocabularies
from sleuth.view.wanted import Wanted

HELD = 32  # archives whose catalogues stay in memory
MOST_SAMPLES = 256


@dataclass(slots=True)
class Desk:
    """Answers from the runs and evaluations of a library; `cache` keeps their indexes between two starts."""

    library: Library
    comparisons: Comparisons
    vocabularies: Vocabularies
    cache: Path | None
    _archives: "OrderedDict[tuple[Kind, str], Archive]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def run(self, wanted: asked.OfRun) -> Tree:
        """What a run is and was made with."""
        shown = self.library.find("run", wanted.run)
        steps = [STEP.fullmatch(each.name) for each in shown.names("checkpoints")]
        archive = self._archive("run", shown)
        tokenizer = self.vocabularies.of(shown)
        return {
            **standing(shown, "run"),
            "manifest": document(shown, MANIFEST),
            "summary": document(shown, DONE["run"]),
            "parity": document(shown, "parity.json"),
            "best": document(shown, "best.json"),
            "checkpoints": sorted(int(step[1]) for step in steps if step is not None),
            "steps": [leaf.step for leaf in archive.leaves()],
            "trajectories": archive.count(),
            "stops": [each.value for each in StopReason],
            "tokenizer": tokenizer is not None,
        }

    def metrics(self, wanted: asked.OfMetrics) -> Tree:
        """What a run recorded since the cursor."""
        return follow.increment(self.library.find("run", wanted.run), wanted.cursor)

    def trajectories(self, wanted: asked.OfTrajectories) -> Tree:
        """A page of a list."""
        after = None if wanted.cursor is None else At.read(wanted.cursor)
        archive = self._found(wanted)
        return listing.page(archive, wanted.wanted, order=wanted.order, limit=wanted.limit, after=after)

    def trajectory(self, wanted: asked.OfTrajectory) -> Tree:
        """One trajectory whole."""
        archive, at = self._found(wanted), At.read(wanted.at)
        found = whole(archive, at, self.vocabularies.of(archive.shown), wanted.tokens)
        return {**found, "neighbours": neighbours(archive, at)}

    def group(self, wanted: asked.OfGroup) -> Tree:
        """The samples of one question in one step."""
        archive = self._archive("run", self.library.find("run", wanted.run))
        only = Wanted(step_from=wanted.step, step_to=wanted.step, group=wanted.group)
        rows = listing.rows_of(archive, listing.survey(archive, only, budget=PATIENCE).found, MOST_SAMPLES)
        if not rows:
            raise HttpProblem(404, f"step {wanted.step} of {wanted.run} has no group {wanted.group}")
        samples, broken = self._samples(archive, rows, wanted.tokens)
        if not samples:
            raise HttpProblem(503, broken[0])
        about = {name: samples[0][name] for name in ("question_id", "data_source", "question", "golden_answers")}
        return {"step": wanted.step, "group": wanted.group, **about, "samples": samples, "broken": broken}

    def _samples(self, archive: Archive, rows: list[Tree], tokens: bool) -> tuple[list[Tree], list[str]]:
        """The trajectories of the rows, and a sentence for each that cannot be shown."""
        tokenizer, samples, broken = self.vocabularies.of(archive.shown), list[Tree](), list[str]()
        for row in rows:
            try:
                samples.append(whole(archive, At.read(row["at"]), tokenizer, tokens))
            except HttpProblem as refused:
                broken.append(str(refused))
        return samples, broken

    def question(self, wanted: asked.OfQuestion) -> Tree:
        """One question over the steps."""
        return questions.over_steps(self._found(wanted), wanted.question, wanted.source)

    def questions(self, wanted: asked.OfQuestions) -> Tree:
        """The questions there are."""
        return questions.asked(self._found(wanted), wanted.text, wanted.first, wanted.limit)

    def evaluation(self, wanted: asked.OfEvaluation) -> Tree:
        """The figures of an evaluation."""
        shown = self.library.find("evaluation", wanted.evaluation)
        return {
            **standing(shown, "evaluation"),
            "manifest": document(shown, MANIFEST),
            "measures": self.comparisons.measures,
            "counts": self.comparisons.counts,
            "tokenizer": self.vocabularies.of(shown) is not None,
            "results": document(shown, DONE["evaluation"]),
        }

    def compare(self, wanted: asked.OfComparison) -> Tree:
        """Two evaluations, question by question."""
        if wanted.measure not in self.comparisons.measures:
            expected = ", ".join(self.comparisons.measures)
            raise HttpProblem(400, f"measure is {wanted.measure[:80]!r}; expected one of {expected}")
        first, second = (self.library.find("evaluation", each) for each in (wanted.first, wanted.second))
        found = self.comparisons.of(first, second, wanted.common)
        archives = self._archive("evaluation", first), self._archive("evaluation", second)
        chosen = Chosen(wanted.measure, wanted.show, wanted.source, wanted.start, wanted.limit)
        names = {"measures": self.comparisons.measures, "counts": self.comparisons.counts}
        return {**comparison.page(found, archives, chosen), **names}

    def _found(self, wanted: asked.OfEither) -> Archive:
        kind, name = wanted.chosen
        return self._archive(kind, self.library.find(kind, name))

    def _archive(self, kind: Kind, shown: Shown) -> Archive:
        """The archive of a folder, the one of before where it was asked for lately."""
        with self._lock:
            key = kind, shown.id
            if key not in self._archives or self._archives[key].shown != shown:
                self._archives[key] = Archive(shown, kind, self.cache)
                while len(self._archives) > HELD:
                    self._archives.popitem(last=False)
            self._archives.move_to_end(key)
            return self._archives[key]
