"""Approximate search: recall, determinism and resumable builds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from sleuth.config.retrieval import AnnSettings
from sleuth.errors import InputError
from sleuth.retrieval.dense import ann
from sleuth.retrieval.dense.ann import Ann, build

Single = NDArray[np.float32]
Half = NDArray[np.float16]

HNSW = AnnSettings(links=16, effort=96)
IVFPQ = AnnSettings(method="ivfpq", bytes=16, effort=32)
QUERIES = [str(number) for number in range(100)]


def unit(count: int, dimensions: int, seed: int) -> Single:
    vectors = np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def encode(queries: list[str]) -> Single:
    """A query is a number, and its vector the one of that number; a few stand for none."""
    return np.stack([unit(1, 64, 1000 + int(query))[0] for query in queries])


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The threads of FAISS wait for each other by spinning: on a busy machine that takes most of the time."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)


@pytest.fixture(scope="module")
def vectors() -> Half:
    return unit(5000, 64, 1).astype(np.float16)


@pytest.fixture(scope="module")
def exact(vectors: Half) -> NDArray[np.intp]:
    return np.argsort(-(encode(QUERIES) @ vectors.astype(np.float32).T), axis=1)[:, :10]


@pytest.fixture(scope="module")
def graph(vectors: Half, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hnsw")
    assert build(vectors, folder, HNSW) == {"links": 16}
    return folder / ann.FILE


@pytest.fixture(scope="module")
def lists(vectors: Half, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ivfpq")
    assert build(vectors, folder, IVFPQ) == {"lists": 128, "bytes": 16}
    return folder / ann.FILE


def ranker(path: Path, settings: AnnSettings, count: int = 5000) -> Ann:
    return Ann(ann.read(path), encode, np.arange(count, dtype=np.uint32), settings)


def recall(found: Ann, exact: NDArray[np.intp]) -> float:
    ranked = found.rank(QUERIES, 10)
    shares = [len({row for row, _ in hits} & set(best)) / 10 for hits, best in zip(ranked, exact, strict=True)]
    return float(np.mean(shares))


def test_graph_finds_nearly_all(graph: Path, exact: NDArray[np.intp]) -> None:
    assert recall(ranker(graph, HNSW), exact) > 0.9


def test_lists_find_many(lists: Path, exact: NDArray[np.intp]) -> None:
    assert recall(ranker(lists, IVFPQ), exact) > 0.4


def test_more_effort_finds_more(graph: Path, lists: Path, exact: NDArray[np.intp]) -> None:
    for path, settings in ((graph, HNSW), (lists, IVFPQ)):
        little = settings.model_copy(update={"effort": 1})
        assert recall(ranker(path, little), exact) < recall(ranker(path, settings), exact)


def test_vectors_make_what_is_found_in_lists_exact(lists: Path, vectors: Half, exact: NDArray[np.intp]) -> None:
    ranks = np.arange(5000, dtype=np.uint32)
    found = Ann(ann.read(lists), encode, ranks, IVFPQ.model_copy(update={"effort": 128}), vectors)
    assert recall(found, exact) > 0.9
    (hits,) = found.rank(["3"], 200)
    products = vectors.astype(np.float32) @ encode(["3"])[0]
    assert [score for _, score in hits] == pytest.approx([products[row] for row, _ in hits], abs=1e-6)
    assert found.rank(["3"], 10) == [hits[:10]]


def test_scores_of_a_graph_are_inner_products(graph: Path, vectors: Half) -> None:
    (hits,) = ranker(graph, HNSW).rank(["3"], 5)
    products = vectors.astype(np.float32) @ encode(["3"])[0]
    assert [score for _, score in hits] == pytest.approx([products[row] for row, _ in hits], abs=1e-5)
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)


def test_query_has_the_same_hits_alone_and_with_others_in_a_graph(graph: Path) -> None:
    found = ranker(graph, HNSW)
    assert found.rank(QUERIES, 7) == [found.rank([query], 7)[0] for query in QUERIES]


def test_query_has_the_same_hits_alone_and_with_others_in_lists() -> None:
    # Numbers in another order have the same sum but for rounding: that alone decides which list is the nearest.
    drawn = np.random.default_rng(8)
    centroids = np.stack([drawn.permutation(unit(1, 512, 8)[0]) for _ in range(64)])
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(512), 512, 64, faiss.METRIC_INNER_PRODUCT)
    index.quantizer.add(centroids)
    index.train(centroids)
    index.add(centroids)
    constant = np.outer(drawn.uniform(0.5, 2, 300), np.ones(512)).astype(np.float32)
    ranks, settings = np.arange(64, dtype=np.uint32), AnnSettings(effort=1)
    found = Ann(index, lambda queries: constant[[int(query) for query in queries]], ranks, settings)
    queries = [str(number) for number in range(300)]
    assert found.rank(queries, 1) == [found.rank([query], 1)[0] for query in queries]


@pytest.mark.parametrize(("kind", "settings"), [("graph", HNSW), ("lists", IVFPQ)])
def test_smaller_k_is_a_prefix(kind: str, settings: AnnSettings, request: pytest.FixtureRequest) -> None:
    found = ranker(request.getfixturevalue(kind), settings)
    assert [hits[:3] for hits in found.rank(QUERIES, 40)] == found.rank(QUERIES, 3)


@pytest.mark.parametrize("k", [1, 33, 10**9])
def test_any_k_is_answered(graph: Path, k: int) -> None:
    (hits,) = ranker(graph, HNSW).rank(["5"], k)
    rows = [row for row, _ in hits]
    assert min(k, 33) <= len(hits) <= min(k, 5000)
    assert len(set(rows)) == len(rows)
    assert min(rows) >= 0


def test_equal_scores_come_in_the_order_of_the_ids_across_the_cut(tmp_path: Path) -> None:
    twins = np.repeat(unit(20, 64, 2), 8, axis=0).astype(np.float16)
    build(twins, tmp_path, HNSW)
    backwards = np.arange(len(twins), dtype=np.uint32)[::-1]
    (hits,) = Ann(ann.read(tmp_path / ann.FILE), encode, backwards, HNSW).rank(["0"], 11)
    rows = [row for row, _ in hits]
    first, second = rows[0] // 8, rows[8] // 8
    assert rows == [*range(first * 8 + 7, first * 8 - 1, -1), *range(second * 8 + 7, second * 8 + 4, -1)]


def test_blank_queries_have_no_hits_and_are_not_encoded(graph: Path) -> None:
    found = ranker(graph, HNSW)
    assert found.rank([" ", "4", ""], 3) == [[], found.rank(["4"], 3)[0], []]
    assert found.rank(["\n"], 3) == [[]]
    assert found.rank([], 3) == []


def test_k_is_at_least_one(graph: Path) -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        ranker(graph, HNSW).rank(["1"], 0)


@pytest.mark.parametrize("settings", [HNSW, IVFPQ])
def test_build_gives_the_same_bytes_with_any_number_of_threads(
    settings: AnnSettings, vectors: Half, tmp_path: Path
) -> None:
    written = []
    for number in (2, 1):
        faiss.omp_set_num_threads(number)
        build(vectors[:1000], tmp_path, settings)
        written.append((tmp_path / ann.FILE).read_bytes())
    assert written[0] == written[1]


def stop_at(row: int) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        if stage == "linking vectors" and done == row:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("settings", [AnnSettings(links=2), AnnSettings(method="ivfpq", lists=8, bytes=1)])
def test_build_that_was_interrupted_continues_and_gives_the_same_bytes(settings: AnnSettings, tmp_path: Path) -> None:
    vectors = unit(3 * ann.BLOCK + 100, 8, 3).astype(np.float16)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    build(vectors, whole, settings)
    with pytest.raises(KeyboardInterrupt):
        build(vectors, broken, settings, stop_at(3 * ann.BLOCK), save_every=2 * ann.BLOCK)
    heard: list[tuple[str, int]] = []
    build(vectors, broken, settings, lambda *said: heard.append(said[:2]), save_every=2 * ann.BLOCK)
    assert heard[0] == ("linking vectors", 2 * ann.BLOCK)
    assert (broken / ann.FILE).read_bytes() == (whole / ann.FILE).read_bytes()
    assert [path.name for path in broken.iterdir()] == [ann.FILE]


def test_unfinished_index_of_other_vectors_is_not_continued(tmp_path: Path) -> None:
    settings = AnnSettings(links=2)
    vectors = unit(2 * ann.BLOCK, 8, 3).astype(np.float16)
    with pytest.raises(KeyboardInterrupt):
        build(vectors, tmp_path, settings, stop_at(ann.BLOCK), save_every=ann.BLOCK)
    heard: list[tuple[str, int]] = []
    build(-vectors, tmp_path, settings, lambda *said: heard.append(said[:2]), save_every=ann.BLOCK)
    assert heard[0] == ("linking vectors", 0)
    assert [path.name for path in tmp_path.iterdir()] == [ann.FILE]


@pytest.mark.parametrize(
    ("dimensions", "asked", "chosen"), [(64, 64, 64), (60, 64, 60), (60, 13, 12), (60, 11, 12), (60, 1, 1)]
)
def test_bytes_of_a_vector_divide_its_dimensions(dimensions: int, asked: int, chosen: int, tmp_path: Path) -> None:
    settings = AnnSettings(method="ivfpq", bytes=asked)
    assert build(unit(300, dimensions, 4).astype(np.float16), tmp_path, settings)["bytes"] == chosen


@pytest.mark.parametrize(
    ("count", "lists", "message"),
    [
        (255, 0, "255 passages are too few for ivfpq with 6 lists, expected at least 256"),
        (300, 301, "300 passages are too few for ivfpq with 301 lists, expected at least 301"),
    ],
)
def test_too_few_passages_for_lists_are_rejected(count: int, lists: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        build(unit(count, 8, 5).astype(np.float16), tmp_path, AnnSettings(method="ivfpq", lists=lists))


def test_graph_of_single_links_is_rejected() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        AnnSettings(links=1)


def test_corpus_of_another_size_is_rejected(graph: Path) -> None:
    with pytest.raises(InputError, match="5,000 vectors and the corpus 4,999 passages"):
        ranker(graph, HNSW, 4999)


def test_encoder_of_other_dimensions_is_rejected(graph: Path) -> None:
    found = Ann(ann.read(graph), lambda queries: unit(len(queries), 32, 0), np.arange(5000, dtype=np.uint32), HNSW)
    with pytest.raises(InputError, match=r"32 dimensions.* 64"):
        found.rank(["1"], 3)


def test_ids_that_are_no_rows_are_rejected(tmp_path: Path) -> None:
    index = faiss.index_factory(64, "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(unit(50, 64, 6))
    index.add_with_ids(unit(50, 64, 6), np.arange(50) + 7)
    found = Ann(index, encode, np.arange(50, dtype=np.uint32), HNSW)
    with pytest.raises(InputError, match=r"row 56.* 50 passages"):
        found.rank(["1"], 50)


def test_index_by_distance_ranks_the_nearest_first() -> None:
    vectors = unit(200, 64, 7) * np.linspace(0.5, 2, 200, dtype=np.float32)[:, None]
    index = faiss.index_factory(64, "HNSW8", faiss.METRIC_L2)
    index.add(vectors)
    (hits,) = Ann(index, encode, np.arange(200, dtype=np.uint32), HNSW).rank(["1"], 4)
    distances = ((vectors - encode(["1"])) ** 2).sum(axis=1)
    assert [row for row, _ in hits] == np.argsort(distances)[:4].tolist()
    assert [score for _, score in hits] == pytest.approx([-distances[row] for row, _ in hits], abs=1e-4)


def test_index_cut_short_is_refused_in_a_sentence(graph: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.faiss"
    cut.write_bytes(graph.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"cut.faiss is damaged or truncated \(read error in .*\)"):
        ann.read(cut)


def test_index_that_is_gone_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.faiss is damaged .*No such file or directory"):
        ann.read(tmp_path / "gone.faiss")


def test_index_of_another_type_is_rejected(tmp_path: Path) -> None:
    faiss.write_index(faiss.IndexPQ(8, 2, 4), str(tmp_path / "pq.faiss"))
    with pytest.raises(InputError, match="of type IndexPQ, expected HNSW or IVF"):
        ann.read(tmp_path / "pq.faiss")
