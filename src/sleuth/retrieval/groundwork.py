"""What every index folder begins and ends with: its passages surveyed, and a manifest."""

import json
from dataclasses import asdict
from pathlib import Path

from sleuth.corpus import sources
from sleuth.corpus.progress import Progress
from sleuth.corpus.survey import Survey, survey
from sleuth.errors import InputError
from sleuth.retrieval.manifest import CorpusStamp, Manifest, edges_hash, seen_from
from sleuth.runs import replacing

SURVEYED = "survey.json"


def surveyed_corpus(source: Path, folder: Path, progress: Progress) -> tuple[Path, Survey]:
    """The source as a plain corpus with its offsets and ids; what a killed build had finished is used again."""
    kept = folder / SURVEYED
    if kept.exists():
        written = json.loads(kept.read_bytes())
        return Path(written["corpus"]), Survey(**written["survey"])
    plain = sources.plain(source, folder, progress)
    found = survey(plain.corpus, folder, progress, source)
    with replacing(kept) as path:
        path.write_text(json.dumps({"corpus": str(plain.corpus.absolute()), "survey": asdict(found)}))
    return plain.corpus, found


def corpus_stamp(corpus: Path, folder: Path, out: Path, surveyed: Survey) -> CorpusStamp:
    """The corpus as the finished folder knows it; one that is no longer what was read is an InputError."""
    if corpus.stat().st_size != surveyed.bytes:
        raise InputError(f"the corpus {corpus} changed while it was indexed; run the command again")
    inside = corpus.parent.resolve() == folder.resolve()
    path = corpus.name if inside else seen_from(corpus, out)
    return CorpusStamp(path=path, bytes=surveyed.bytes, edges=edges_hash(corpus), sha256=surveyed.sha256)


def finish(manifest: Manifest, folder: Path) -> None:
    """Writes the manifest and removes what only a build needs."""
    manifest.write(folder)
    (folder / SURVEYED).unlink()
