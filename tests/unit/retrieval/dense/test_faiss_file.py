"""Reading of FAISS files, complete and in pieces, and rejection of damaged ones."""

import struct
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from sleuth.config.retrieval import AnnSettings
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError
from sleuth.retrieval.dense import faiss_file
from sleuth.retrieval.dense.ann import Ann
from sleuth.retrieval.dense.faiss_file import describe, edges, import_flat, open_index, pieces

Single = NDArray[np.float32]

COUNT, DIMENSIONS = 300, 16
INNER, L2 = faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2


@pytest.fixture(scope="module")
def vectors() -> Single:
    drawn = np.random.default_rng(0).standard_normal((COUNT, DIMENSIONS)).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def written(folder: Path, vectors: Single, description: str = "Flat", metric: int = INNER) -> Path:
    """An index of the vectors, as FAISS writes it."""
    index = faiss.index_factory(vectors.shape[1], description, metric)
    index.train(vectors)
    if description.startswith("IDMap"):
        index.add_with_ids(vectors, np.arange(len(vectors)))
    else:
        index.add(vectors)
    path = folder / "some.index"
    faiss.write_index(index, str(path))
    return path


def cut(path: Path, borders: Sequence[int]) -> list[Path]:
    """The file as pieces that end at these bytes."""
    content, folder = path.read_bytes(), path.parent / "pieces"
    folder.mkdir()
    for number, (start, end) in enumerate(zip([0, *borders], [*borders, len(content)], strict=True)):
        (folder / f"part_a{'abcdefgh'[number]}").write_bytes(content[start:end])
    return pieces(folder)


@pytest.mark.parametrize(
    ("description", "metric", "kind", "measure"),
    [
        ("Flat", INNER, "flat", "inner product"),
        ("Flat", L2, "flat", "l2"),
        ("IDMap,Flat", INNER, "flat", "inner product"),
        ("IDMap2,Flat", L2, "flat", "l2"),
        ("HNSW8", INNER, "hnsw", "inner product"),
        ("HNSW8", L2, "hnsw", "l2"),
        ("HNSW8,SQfp16", INNER, "hnsw", "inner product"),
        ("IVF4,Flat", INNER, "other", "inner product"),
        ("IVF4,SQ8", L2, "other", "l2"),
        ("IVF1,PQ4x4np", INNER, "other", "inner product"),
    ],
)
def test_index_is_described_by_its_header(
    description: str, metric: int, kind: str, measure: str, vectors: Single, tmp_path: Path
) -> None:
    path = written(tmp_path, vectors, description, metric)
    found = describe([path])
    assert (found.kind, found.metric, found.count, found.dimensions) == (kind, measure, COUNT, DIMENSIONS)
    assert (found.files, found.bytes) == ((path,), path.stat().st_size)


@pytest.mark.parametrize("description", ["Flat", "IDMap,Flat"])
@pytest.mark.parametrize("borders", [[], [2], [3, 20, 40], [5000], [0, 0, 101, 5003]])
def test_vectors_of_a_flat_index_are_imported_in_half_precision(
    description: str, borders: list[int], vectors: Single, tmp_path: Path
) -> None:
    files = cut(written(tmp_path, vectors, description), borders)
    assert len(files) == len(borders) + 1
    assert import_flat(files, tmp_path) == describe(files)
    imported = np.load(tmp_path / "vectors.npy")
    assert imported.dtype == np.float16
    assert np.array_equal(imported, vectors.astype(np.float16))


def test_import_that_was_interrupted_continues(tmp_path: Path) -> None:
    dimensions = 256
    block = faiss_file.BLOCK // (4 * dimensions)
    tiled = np.resize(np.random.default_rng(1).standard_normal(9999), (2 * block + 5, dimensions)).astype(np.float32)
    path = written(tmp_path, tiled)
    with pytest.raises(KeyboardInterrupt):
        import_flat([path], tmp_path, stop_at(2 * block))
    (unfinished,) = tmp_path.glob("importing.*")
    with unfinished.open("ab") as file:
        file.write(b"half a vector")
    heard: list[int] = []
    import_flat([path], tmp_path, lambda _, done, total: heard.append(done - total))
    assert heard == [-5, 0]
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), tiled.astype(np.float16))
    assert {each.name for each in tmp_path.iterdir()} == {"some.index", "vectors.npy"}


def stop_at(row: int) -> Progress:
    def progress(stage: str, done: int, total: int) -> None:
        if done == row:
            raise KeyboardInterrupt

    return progress


def test_import_interrupted_with_another_index_begins_anew(vectors: Single, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_flat([written(tmp_path, vectors)], tmp_path, stop_at(COUNT))
    import_flat([written(tmp_path, -vectors)], tmp_path)
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), -vectors.astype(np.float16))
    assert not list(tmp_path.glob("importing.*"))


@pytest.mark.parametrize("description", ["HNSW64", "HNSW8,SQfp16", "IVF4,Flat"])
@pytest.mark.parametrize("borders", [[], [11, 9001]])
def test_kept_index_finds_what_faiss_finds(
    description: str, borders: list[int], vectors: Single, tmp_path: Path
) -> None:
    path = written(tmp_path, vectors, description)
    files = cut(path, borders)
    settings = AnnSettings(effort=40)
    kept = Ann(open_index(files), lambda _: vectors[:9] + 0.1, np.arange(COUNT, dtype=np.uint32), settings)
    index = faiss.read_index(str(path))
    faiss.ParameterSpace().set_index_parameter(index, "nprobe" if description.startswith("IVF") else "efSearch", 40)
    scores, rows = index.search(vectors[:9] + 0.1, 5)
    expected = [list(zip(*both, strict=True)) for both in zip(rows.tolist(), scores.tolist(), strict=True)]
    assert kept.rank(["x"] * 9, 5) == expected


@pytest.mark.parametrize("description", ["Flat", "HNSW8", "IDMap,Flat"])
@pytest.mark.parametrize("change", [-1, -4000, 7])
def test_file_of_the_wrong_size_is_rejected(description: str, change: int, vectors: Single, tmp_path: Path) -> None:
    path = written(tmp_path, vectors, description)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"#" * change)
    sentence = rf"has {len(content) + change:,} bytes, expected {len(content):,}"
    with pytest.raises(InputError, match=sentence):
        describe([path])


@pytest.mark.parametrize("size", [0, 3, 20, 40, 100, 1000])
@pytest.mark.parametrize("description", ["Flat", "HNSW8", "IDMap,Flat"])
def test_file_cut_in_its_head_is_rejected(description: str, size: int, vectors: Single, tmp_path: Path) -> None:
    path = written(tmp_path, vectors, description)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=rf"has {size:,} bytes, expected (at least )?\d+"):
        describe([path])


def test_missing_piece_is_rejected(vectors: Single, tmp_path: Path) -> None:
    first, _, last = cut(written(tmp_path, vectors), [1000, 2000])
    with pytest.raises(InputError, match="part_aa and 1 more has 18,245 bytes, expected 19,245"):
        describe([first, last])
    with pytest.raises(InputError, match="expected the type code"):
        describe([last, first])


@pytest.mark.parametrize(
    ("content", "shown"), [(b"version https://git-lfs.github.com/spec/v1\n", "b'vers'"), (b"\x93NUMPY" * 9, "NUM")]
)
def test_non_faiss_file_is_rejected(content: bytes, shown: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(InputError, match=rf"{shown}.*, expected .*Flat, HNSW"):
        describe([tmp_path / "other"])


@pytest.mark.parametrize(
    ("place", "packed", "sentence"),
    [
        (4, struct.pack("<i", 0), "has 300 vectors of 0 dimensions with metric 0"),
        (8, struct.pack("<q", 0), "has 0 vectors of 16 dimensions with metric 0"),
        (33, struct.pack("<i", 22), "has 300 vectors of 16 dimensions with metric 22"),
        (8, struct.pack("<q", 299), "inconsistent: 299 vectors of 16 dimensions in an array of 4800"),
    ],
)
def test_header_that_makes_no_sense_is_rejected(
    place: int, packed: bytes, sentence: str, vectors: Single, tmp_path: Path
) -> None:
    path = written(tmp_path, vectors)
    content = bytearray(path.read_bytes())
    content[place : place + len(packed)] = packed
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        describe([path])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 70000.0])
def test_vectors_beyond_half_precision_are_rejected(bad: float, vectors: Single, tmp_path: Path) -> None:
    spoilt = vectors.copy()
    spoilt[123, 4] = bad
    with pytest.raises(InputError, match=r"vector 123 of .*some.index .*not finite in 16 bits"):
        import_flat([written(tmp_path, spoilt)], tmp_path)
    assert not (tmp_path / "vectors.npy").exists()


def test_distances_are_imported_for_unit_vectors_only(vectors: Single, tmp_path: Path) -> None:
    import_flat([written(tmp_path, vectors, metric=L2)], tmp_path)
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), vectors.astype(np.float16))
    longer = vectors.copy()
    longer[7] *= 2
    with pytest.raises(InputError, match=r"vector 7 of .* has norm 2, expected 1"):
        import_flat([written(tmp_path, longer, metric=L2)], tmp_path)


def test_only_a_flat_index_is_imported(vectors: Single, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without plain vectors, expected a Flat one"):
        import_flat([written(tmp_path, vectors, "HNSW8")], tmp_path)


def test_ids_other_than_row_numbers_are_rejected(vectors: Single, tmp_path: Path) -> None:
    index = faiss.IndexIDMap(faiss.IndexFlatIP(DIMENSIONS))
    ids = np.arange(COUNT)
    ids[[50, 60]] = ids[[60, 50]]
    index.add_with_ids(vectors, ids)
    faiss.write_index(index, str(tmp_path / "ids"))
    with pytest.raises(InputError, match="vector 50 the id 60"):
        describe([tmp_path / "ids"])


def test_ids_of_a_graph_are_rejected(vectors: Single, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="type hnsw"):
        describe([written(tmp_path, vectors, "IDMap,HNSW8")])


def test_place_that_cannot_be_written_is_rejected(vectors: Single, tmp_path: Path) -> None:
    path = written(tmp_path, vectors)
    (tmp_path / "vectors.npy").mkdir()
    with pytest.raises(InputError, match=r"vectors.npy cannot be written \(Is a directory\)"):
        import_flat([path], tmp_path)


def test_kept_index_that_is_damaged_is_rejected(vectors: Single, tmp_path: Path) -> None:
    path = written(tmp_path, vectors, "IVF4,Flat")
    path.write_bytes(path.read_bytes()[:-500])
    for files in (cut(path, [1000]), [path]):
        with pytest.raises(InputError, match="is damaged or truncated"):
            open_index(files)


def test_piece_that_is_gone_is_rejected(vectors: Single, tmp_path: Path) -> None:
    files = cut(written(tmp_path, vectors), [1000])
    files[1].unlink()
    with pytest.raises(InputError, match=r"part_ab .*No such file or directory"):
        describe(files)


def test_pieces_are_ordered_and_nothing_else_is_one(tmp_path: Path) -> None:
    names = ["part_1", "part_2", "part_9", "part_10", "part_11"]
    for name in [*reversed(names), "part_1.sha256", "partial", "README.md"]:
        (tmp_path / name).touch()
    ordered = [tmp_path / name for name in names]
    assert pieces(tmp_path) == ordered
    assert pieces(tmp_path / "part_9") == ordered
    assert pieces(tmp_path / "README.md") == [tmp_path / "README.md"]


def test_folder_without_pieces_and_a_missing_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no part_\* pieces"):
        pieces(tmp_path)
    with pytest.raises(InputError, match=r"e5\.index does not exist; give a FAISS file"):
        pieces(tmp_path / "e5.index")


def test_edges_tell_indexes_apart(vectors: Single, tmp_path: Path) -> None:
    path = written(tmp_path, vectors)
    before = edges([path])
    assert edges([path]) == before
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert edges([path]) != before
    assert edges(cut(path, [1000])) != edges([path])
