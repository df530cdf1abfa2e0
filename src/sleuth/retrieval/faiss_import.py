"""Import of a published FAISS index: an index folder around existing vectors."""

from pathlib import Path

from sleuth.config.retrieval import AnnSettings, EncoderSettings
from sleuth.corpus.arrays import sample_positions
from sleuth.corpus.passages import PassageStore
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.retrieval import staging
from sleuth.retrieval.dense import faiss_file, vectors
from sleuth.retrieval.dense.encoder import Encoder
from sleuth.retrieval.manifest import FileStamp, Manifest, library_versions, relative_path
from sleuth.runs.atomic import require_new


def import_faiss(
    published: Path, source: Path, out: Path, settings: EncoderSettings, *, progress: Progress = silent
) -> Manifest:
    """Create an index folder: a flat index is converted to fp16 vectors, any other is searched in place."""
    require_new(out)
    described = faiss_file.describe(faiss_file.pieces(published))
    encoder = Encoder.load(settings)
    if described.dimensions != encoder.dimensions:
        raise InputError(
            f"{published} has vectors of {described.dimensions} dimensions, the encoder {settings.model} produces "
            f"{encoder.dimensions}; name the encoder of these vectors"
        )
    edges = faiss_file.edges(described.files)
    spec = {"source": staging.source_fingerprint(source), "faiss": edges, **settings.model_dump(mode="json")}
    with staging.staged_folder(out, spec) as folder:
        corpus = staging.prepare_corpus(source, folder, progress)
        if described.count != corpus.survey.passages:
            raise InputError(
                f"{published} has {described.count:,} vectors, {source} has {corpus.survey.passages:,} passages; "
                "give the corpus that was indexed"
            )
        store = PassageStore(corpus.path, folder)
        rows = sample_positions(len(store), vectors.SAMPLE)
        if sample := faiss_file.plain_vectors(described, rows):
            # Vectors of another encoder or in another order would be searched without any error.
            texts = [store[row].contents for row in rows]
            vectors.require_same_encoder(encoder, list(zip(texts, sample, strict=True)), published)
        flat = described.kind == "flat"
        if flat:
            faiss_file.import_flat(described.files, folder, progress)
        manifest = Manifest(
            kind="dense" if flat else "ann",
            corpus=staging.corpus_stamp(corpus, folder, out),
            passages=described.count,
            skipped=corpus.skipped,
            counts={},
            encoder=settings,
            encoder_sha256=encoder.fingerprint,
            dimensions=described.dimensions,
            ann=None if flat else AnnSettings(method="hnsw" if described.kind == "hnsw" else "ivfpq"),
            faiss=() if flat else tuple(FileStamp.of(file, relative_path(file, out)) for file in described.files),
            libraries=library_versions(),
        )
        return staging.finish(manifest, folder)
