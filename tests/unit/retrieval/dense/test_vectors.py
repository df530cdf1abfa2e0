"""The embedding matrix: resumable builds, and rejection of damaged or foreign vectors."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sleuth.corpus.arrays import sample_positions
from sleuth.corpus.passages import survey
from sleuth.errors import InputError
from sleuth.retrieval.dense.encoder import Advance, Encoder
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.dense.vectors import SAMPLE, CorpusBlocks, build, open_vectors, require_same_encoder

COUNT = 53
WORDS = ["river", "castle", "painter", "village", "novel", "island", "comet", "treaty", "orchestra", "harbour"]


class Killed(Exception):
    """The process ends here."""


@pytest.fixture(scope="module")
def encoder(small_model: Callable[..., Path]) -> Encoder:
    return Encoder.load(encoder_settings(str(small_model()), pooling="mean", passage_prefix="passage: "), "cpu")


@pytest.fixture(scope="module")
def other(small_model: Callable[..., Path]) -> Encoder:
    return Encoder.load(encoder_settings(str(small_model(seed=7)), pooling="mean"), "cpu")


@pytest.fixture(scope="module")
def contents() -> list[str]:
    """Passages of many lengths, no two alike."""
    return [f'"Title {n}"\n' + " ".join(WORDS[(n * (p + 1)) % 10] for p in range(n % 23)) for n in range(COUNT)]


@pytest.fixture(scope="module")
def surveyed(contents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and its offsets."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = (json.dumps({"id": str(n), "contents": text}) for n, text in enumerate(contents))
    (folder / "corpus.jsonl").write_text("\n\n".join(rows) + "\n")
    survey(folder / "corpus.jsonl", folder)
    return folder


def build_in(out: Path, surveyed: Path, encoder: Encoder, stop: int = COUNT + 1) -> list[int]:
    """Builds in blocks of ten, and is killed when more than `stop` passages are said to be done."""
    heard: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        assert (stage, total) == ("encoding", COUNT)
        heard.append(done)
        if done > stop:
            raise Killed

    build(surveyed / "corpus.jsonl", surveyed / "offsets.npy", out, encoder, progress, block=10)
    return heard


@pytest.fixture(scope="module")
def built(surveyed: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    heard = build_in(folder, surveyed, encoder)
    assert heard == sorted(heard)
    assert heard[-1] == COUNT
    return folder


def test_row_is_the_vector_of_its_passage(built: Path, encoder: Encoder, contents: list[str]) -> None:
    vectors = open_vectors(built, COUNT, 32)
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, encoder.encode_passages(contents), atol=1e-3)
    assert [path.name for path in built.iterdir()] == ["vectors.npy"]


@pytest.mark.parametrize("stop", [0, 9, 10, 25, 52])
def test_build_killed_and_begun_again_gives_the_same_bytes(
    stop: int, tmp_path: Path, surveyed: Path, encoder: Encoder, built: Path
) -> None:
    with pytest.raises(Killed):
        build_in(tmp_path, surveyed, encoder, stop)
    # What a power cut may leave behind the last sync.
    for name in ("vectors.part", "vectors.journal"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"4")
    heard = build_in(tmp_path, surveyed, encoder)
    assert heard[0] > stop // 10 * 10
    assert (tmp_path / "vectors.npy").read_bytes() == (built / "vectors.npy").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npy"]


def test_blocks_encoded_elsewhere_in_any_order_give_the_same_bytes(
    tmp_path: Path, surveyed: Path, encoder: Encoder, built: Path
) -> None:
    """Two builds elsewhere, the first one killed, and one in this process share the blocks."""
    asked: list[list[int]] = []

    def backwards(
        blocks: CorpusBlocks, firsts: Sequence[int], advance: Advance
    ) -> Iterator[tuple[int, NDArray[np.float16]]]:
        asked.append(list(firsts))
        for first in reversed(firsts):
            yield first, encoder.encode_passages(blocks.read(first))
            advance(min(10, COUNT - first))

    def build_elsewhere(stop: int) -> None:
        def progress(_stage: str, done: int, _total: int) -> None:
            if done >= stop:
                raise Killed

        files = (surveyed / "corpus.jsonl", surveyed / "offsets.npy")
        build(*files, tmp_path, encoder, progress, block=10, encode_blocks=backwards)

    with pytest.raises(Killed):
        build_elsewhere(13)  # the last two blocks, of three and of ten passages
    with pytest.raises(Killed):
        build_in(tmp_path, surveyed, encoder, 24)  # the first block, and a part of the second
    with pytest.raises(Killed):
        build_elsewhere(33)
    assert asked == [[0, 10, 20, 30, 40, 50], [10, 20, 30]]
    heard = build_in(tmp_path, surveyed, encoder)
    assert heard[0] > 33
    assert (tmp_path / "vectors.npy").read_bytes() == (built / "vectors.npy").read_bytes()


def test_block_that_nobody_encoded_fails_the_build(tmp_path: Path, surveyed: Path, encoder: Encoder) -> None:
    files = (surveyed / "corpus.jsonl", surveyed / "offsets.npy")
    with pytest.raises(RuntimeError, match="6 blocks were not encoded"):
        build(*files, tmp_path, encoder, block=10, encode_blocks=lambda *_: iter(()))
    assert not (tmp_path / "vectors.npy").exists()


def test_finished_build_is_not_begun_again(built: Path, surveyed: Path, encoder: Encoder) -> None:
    assert build_in(built, surveyed, encoder) == []


def test_build_of_another_encoder_is_not_continued(
    tmp_path: Path, surveyed: Path, encoder: Encoder, other: Encoder
) -> None:
    with pytest.raises(Killed):
        build_in(tmp_path, surveyed, encoder, 25)
    with pytest.raises(InputError, match="of another encoder or corpus"):
        build_in(tmp_path, surveyed, other)


def test_lost_vectors_are_detected(tmp_path: Path, surveyed: Path, encoder: Encoder) -> None:
    with pytest.raises(Killed):
        build_in(tmp_path, surveyed, encoder, 25)
    (tmp_path / "vectors.part").write_bytes((tmp_path / "vectors.part").read_bytes()[:500])
    with pytest.raises(InputError, match="shorter than its journal says"):
        build_in(tmp_path, surveyed, encoder)


def test_corpus_changed_under_a_build_is_an_error(tmp_path: Path, surveyed: Path, encoder: Encoder) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((surveyed / "corpus.jsonl").read_text().replace("{", "[", 1))
    with pytest.raises(InputError, match="changed while it was indexed"):
        build(corpus, surveyed / "offsets.npy", tmp_path, encoder)


def test_only_whole_vectors_are_opened(tmp_path: Path, built: Path) -> None:
    path = tmp_path / "vectors.npy"
    whole = np.load(built / "vectors.npy")
    with pytest.raises(InputError, match="do not exist"):
        open_vectors(tmp_path, COUNT, 32)
    np.save(path, whole)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="damaged or truncated"):
        open_vectors(tmp_path, COUNT, 32)
    for wrong in (whole[:-1], whole.astype(np.float32), np.asfortranarray(whole)):
        np.save(path, wrong)
        with pytest.raises(InputError, match=r"expected \(53, 32\) of float16"):
            open_vectors(tmp_path, COUNT, 32)
    whole[-1, 0] = np.nan
    np.save(path, whole)
    with pytest.raises(InputError, match="non-finite"):
        open_vectors(tmp_path, COUNT, 32)


def test_encoder_that_is_not_the_one_of_the_vectors_is_rejected(
    built: Path, encoder: Encoder, other: Encoder, contents: list[str]
) -> None:
    vectors = open_vectors(built, COUNT, 32)
    stored = [(contents[n], vectors[n]) for n in sample_positions(COUNT, SAMPLE)]
    assert sample_positions(COUNT, SAMPLE) == [0, 13, 26, 39, 52]
    assert require_same_encoder(encoder, [(contents[n], vectors[n] * 3) for n in (1, 40)], "index") == pytest.approx(
        1, abs=1e-3
    )
    assert require_same_encoder(encoder, stored, "index") == pytest.approx(1, abs=1e-3)
    with pytest.raises(InputError, match=r"vectors of index .* cosine -?0\.\d\d over 5"):
        require_same_encoder(other, stored, "index")
    with pytest.raises(InputError, match="not made by the encoder"):
        require_same_encoder(encoder, [(text, vector * np.float16("nan")) for text, vector in stored], "index")
