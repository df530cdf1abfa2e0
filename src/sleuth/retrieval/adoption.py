"""A published FAISS index taken over: an index folder around vectors that others have made."""

from pathlib import Path

from sleuth.corpus.arrays import spread
from sleuth.corpus.passages import PassageStore
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.retrieval.building import building, stamp
from sleuth.retrieval.groundwork import corpus_stamp, finish, ground
from sleuth.retrieval.manifest import Manifest, Stamp, libraries, seen_from
from sleuth.retrieval.settings import AnnSettings, EncoderSettings
from sleuth.retrieval.vectors import faiss_file, matrix
from sleuth.retrieval.vectors.encoder import Encoder
from sleuth.retrieval.vectors.faiss_file import FaissFile
from sleuth.runs.atomic import require_new


def adopt(
    published: Path, source: Path, out: Path, settings: EncoderSettings, *, progress: Progress = silent
) -> Manifest:
    """Makes an index folder: a flat index is turned to fp16 vectors, any other is searched where and as it is."""
    require_new(out)
    found = faiss_file.describe(faiss_file.pieces(published))
    order = {"source": stamp(source), "faiss": faiss_file.edges(found.files), **settings.model_dump(mode="json")}
    encoder = Encoder.load(settings)
    if found.dimensions != encoder.dimensions:
        raise InputError(
            f"{published} holds vectors of {found.dimensions} dimensions and the encoder {settings.model} makes "
            f"{encoder.dimensions}; name the encoder they were made with"
        )
    with building(out, order) as folder:
        laid = ground(source, folder, progress)
        if found.count != laid.survey.passages:
            raise InputError(
                f"{published} holds {found.count:,} vectors and {source} {laid.survey.passages:,} passages; "
                "give the corpus that was indexed"
            )
        _refuse_others(found, PassageStore(laid.corpus, folder), encoder, published)
        flat = found.kind == "flat"
        if flat:
            faiss_file.import_flat(found.files, folder, progress)
        manifest = Manifest(
            kind="dense" if flat else "ann",
            corpus=corpus_stamp(laid, folder, out),
            passages=found.count,
            skipped=laid.skipped,
            counts={},
            encoder=settings,
            encoder_sha256=encoder.fingerprint,
            dimensions=found.dimensions,
            ann=None if flat else AnnSettings(method="hnsw" if found.kind == "hnsw" else "ivfpq"),
            faiss=() if flat else tuple(Stamp.of(file, seen_from(file, out)) for file in found.files),
            libraries=libraries(),
        )
        return finish(manifest, folder)


def _refuse_others(found: FaissFile, store: PassageStore, encoder: Encoder, published: Path) -> None:
    """Vectors of another encoder, or of another order of the corpus, would be searched without an error and in vain."""
    rows = spread(len(store), matrix.SAMPLE)
    kept = faiss_file.plain_vectors(found, rows)
    if kept:
        texts = [store[row].contents for row in rows]
        matrix.check(encoder, list(zip(texts, kept, strict=True)), published)
