"""Index folder builds: a staging folder that survives interruption, and the steps shared by all index types."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth.corpus import sources
from sleuth.corpus.document_rows import Reuse, read_nothing
from sleuth.corpus.passages import Survey, survey
from sleuth.corpus.progress import Progress
from sleuth.corpus.survey import DocumentSurvey, read_survey
from sleuth.errors import InputError, UserError
from sleuth.retrieval.manifest import NAME, FileDigest, Manifest, edges_hash, file_digests, relative_path
from sleuth.runs.atomic import (
    atomic_write,
    explain_write_errors,
    remove_leftovers,
    replace_path,
    require_new,
    sync_tree,
)
from sleuth.runs.lock import locked

SPEC = "order.json"
LOCK = "lock"
SURVEY = "survey.json"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staged_folder(
    out: Path, spec: Mapping[str, Any], *, keep_on_error: bool = False, replace: bool = False
) -> Iterator[Path]:
    """Yield a staging folder that is renamed to `out` on success; an interrupted build with the same `spec` resumes.

    `spec` is everything that determines the result. If the staging folder belongs to another spec, raises
    InputError. A user error removes the staging folder unless `keep_on_error`. If `out` exists, raises InputError;
    with `replace` it is replaced, and the staging folder of another spec is discarded.
    """
    if not replace:
        require_new(out)
    folder = out.with_name(f".building-{out.name}")
    busy = f"another process is building in {folder}; wait for it or stop it first"
    with explain_write_errors(out), _created(folder), locked(folder / LOCK, busy):
        _write_spec(folder, spec, discard=replace)
        remove_leftovers(folder)
        try:
            yield folder
        except UserError as error:
            cause = error.__cause__
            disk_full = isinstance(cause, OSError) and cause.errno in DISK_FULL  # not caused by the input
            if not keep_on_error and not disk_full:
                shutil.rmtree(folder)
            raise
        # Sync before removing the spec: contents without a spec would be discarded.
        sync_tree(folder)
        (folder / SPEC).unlink()
        (folder / LOCK).unlink()
        if replace:
            replace_path(folder, out)
        else:
            folder.rename(out)


@contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create a folder; if the folder no longer exists at exit, also remove the empty parents created for it."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # on file systems such as /proc
        raise InputError(f"{folder} cannot be created: {error.strerror}; choose another folder") from error
    try:
        yield
    finally:
        for parent in missing if not folder.exists() else ():
            if not any(parent.iterdir()):
                parent.rmdir()


def _write_spec(folder: Path, spec: Mapping[str, Any], *, discard: bool) -> None:
    text = json.dumps(spec, indent=2, sort_keys=True)
    path = folder / SPEC
    if not path.exists() or (discard and path.read_text(encoding="utf-8") != text):
        # Leftovers without a spec come from a build killed after it finished: their origin is unknown.
        for leftover in folder.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            elif leftover.name != LOCK:
                leftover.unlink()
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        raise InputError(
            f"{folder} holds an unfinished build with another source or settings; "
            "repeat that command to finish it, or remove the folder"
        )


def source_fingerprint(source: Path) -> str:
    """Hash the names, sizes and modification times of the source files, without reading their contents."""
    seen = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources.files_of(source)]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PlainCorpus:
    """A JSONL corpus and its survey; `documents` describes the files it was made from, if they are documents."""

    path: Path
    survey: Survey
    documents: DocumentSurvey | None


def prepare_corpus(source: Path, folder: Path, progress: Progress, reuse: Reuse = read_nothing) -> PlainCorpus:
    """Convert the source to a plain corpus with offsets and ids, reusing the result of an interrupted build."""
    record = folder / SURVEY
    if record.exists():
        progress("resuming an unfinished build", 0, 0)
        saved = json.loads(record.read_bytes())
        return PlainCorpus(Path(saved["corpus"]), Survey(**saved["survey"]), read_survey(folder))
    plain = sources.plain_corpus(source, folder, progress, reuse=reuse)
    corpus = PlainCorpus(plain.path.absolute(), survey(plain.path, folder, progress, source), plain.documents)
    with atomic_write(record) as path:
        saved = {"corpus": str(corpus.path), "survey": asdict(corpus.survey)}
        path.write_text(json.dumps(saved))
    return corpus


def corpus_stamp(corpus: PlainCorpus, folder: Path, out: Path) -> FileDigest:
    """Return the corpus entry of the manifest; raise InputError if the corpus changed during the build."""
    file, found = corpus.path, corpus.survey
    if file.stat().st_size != found.bytes:
        raise InputError(f"the corpus {file} changed while it was indexed; run the command again")
    path = file.name if file.parent.resolve() == folder.resolve() else relative_path(file, out)
    return FileDigest(path=path, bytes=found.bytes, edges=edges_hash(file), sha256=found.sha256)


def finish(manifest: Manifest, folder: Path, *redundant: str) -> Manifest:
    """Write the manifest with all checksums; remove intermediate and `redundant` files."""
    removed = (SURVEY, sources.ORIGIN, *redundant)
    digests = file_digests(folder, exclude=(*removed, manifest.corpus.path, NAME, LOCK, SPEC))
    complete = manifest.model_copy(update={"files": digests})
    complete.write(folder)
    # Sync first: a kill while gigabytes are written must not lose the work in the removed files.
    sync_tree(folder)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    return complete
