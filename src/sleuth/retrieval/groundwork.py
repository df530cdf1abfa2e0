"""What every index folder begins and ends with: its passages surveyed, and a manifest."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sleuth.corpus import sources
from sleuth.corpus.progress import Progress
from sleuth.corpus.survey import Survey, survey
from sleuth.errors import InputError
from sleuth.retrieval.building import LOCK, ORDER
from sleuth.retrieval.manifest import NAME, CorpusStamp, Manifest, edges_hash, seen_from, stamps
from sleuth.runs.atomic import atomic_write, sync_tree

SURVEYED = "survey.json"


@dataclass(frozen=True, slots=True)
class Ground:
    """A plain corpus and what was found in it; `skipped` names the documents that could not be read."""

    corpus: Path
    survey: Survey
    skipped: tuple[str, ...]


def ground(source: Path, folder: Path, progress: Progress) -> Ground:
    """The source as a plain corpus with its offsets and ids; what a killed build had finished is used again."""
    kept = folder / SURVEYED
    if kept.exists():
        progress("going on with an unfinished build", 0, 0)
        written = json.loads(kept.read_bytes())
        return Ground(Path(written["corpus"]), Survey(**written["survey"]), tuple(written["skipped"]))
    plain = sources.plain(source, folder, progress)
    laid = Ground(plain.corpus.absolute(), survey(plain.corpus, folder, progress, source), plain.skipped)
    with atomic_write(kept) as path:
        path.write_text(json.dumps(asdict(laid) | {"corpus": str(laid.corpus)}))
    return laid


def corpus_stamp(laid: Ground, folder: Path, out: Path) -> CorpusStamp:
    """The corpus as the finished folder knows it; one that is no longer what was read is an InputError."""
    corpus, found = laid.corpus, laid.survey
    if corpus.stat().st_size != found.bytes:
        raise InputError(f"the corpus {corpus} changed while it was indexed; run the command again")
    inside = corpus.parent.resolve() == folder.resolve()
    path = corpus.name if inside else seen_from(corpus, out)
    return CorpusStamp(path=path, bytes=found.bytes, edges=edges_hash(corpus), sha256=found.sha256)


def finish(manifest: Manifest, folder: Path, *spare: str) -> Manifest:
    """Writes the manifest with all checksums, and removes what only a build needs and files that are `spare` now."""
    unneeded = (SURVEYED, sources.ORIGIN, *spare)
    found = stamps(folder, *unneeded, manifest.corpus.path, NAME, LOCK, ORDER)
    whole = manifest.model_copy(update={"files": found})
    whole.write(folder)
    # A kill while gigabytes go to the disk must not cost the work that is in the spare files.
    sync_tree(folder)
    for name in unneeded:
        (folder / name).unlink(missing_ok=True)
    return whole
