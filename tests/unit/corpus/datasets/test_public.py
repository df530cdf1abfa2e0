"""Downloads from a loopback server with the API of the Hub, including its failures."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import huggingface_hub.constants
import pytest

from sleuth.cli.main import main
from sleuth.corpus.datasets import public
from sleuth.corpus.datasets.public import COLLECTIONS, SETS, Collection, part_of
from sleuth.errors import InputError

HUB = "someone/some-data"
MAIN = "from sleuth.cli.main import main; main()"
NQ = [{"id": f"train_{n}", "question": f"who is {n}", "golden_answers": [f"N{n}"]} for n in range(5)]


def noise(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def download(folder: Path, *patterns: str, joined: str | None = None) -> list[Path]:
    return public.download(Collection(HUB, patterns, joined), folder)


def test_files_are_selected_by_pattern_and_keep_their_paths(hub: Any, tmp_path: Path) -> None:
    hub.files = {
        **{"a b/one.bin": noise(5000), "a b/two.bin": noise(3000, 1), "three.txt": b"3", "empty.bin": b""},
        **{"README.md": b"page", ".gitattributes": b""},
    }
    hub.small = ("three.txt", "README.md", ".gitattributes")
    hub.claimed = {}
    paths = download(tmp_path, "*")
    home = tmp_path / HUB
    assert sorted(paths) == sorted(home / name for name in ("a b/one.bin", "a b/two.bin", "three.txt", "empty.bin"))
    assert {str(path.relative_to(home)): path.read_bytes() for path in paths}.items() <= hub.files.items()
    assert not list(tmp_path.rglob("*.partial"))
    before = len(hub.asked)
    assert download(tmp_path, "a b/one.bin", "three.txt") == [home / "a b/one.bin", home / "three.txt"]
    assert len(hub.asked) == before


def test_interrupted_transfer_is_resumed(hub: Any, tmp_path: Path) -> None:
    hub.files, hub.cuts, hub.after = {"one.bin": noise(5000)}, 3, 1500
    [path] = download(tmp_path, "one.bin")
    assert path.read_bytes() == hub.files["one.bin"]
    assert hub.asked == [("one.bin", None), *(("one.bin", f"bytes={1500 * n}-") for n in (1, 2, 3))]


def test_killed_download_is_resumed_by_the_next_command(hub: Any, tmp_path: Path) -> None:
    hub.files, hub.cuts, hub.after = {"one.bin": noise(5000)}, 100, 0
    partial = tmp_path / HUB / "one.bin.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(hub.files["one.bin"][:3210])
    with pytest.raises(InputError, match=r"one\.bin of the data set someone/some-data .*again to resume"):
        download(tmp_path, "one.bin")
    assert not (tmp_path / HUB / "one.bin").exists()
    hub.cuts, hub.asked = 0, []
    [path] = download(tmp_path, "one.bin")
    assert hub.asked == [("one.bin", "bytes=3210-")]
    assert path.read_bytes() == hub.files["one.bin"]
    assert not partial.exists()


@pytest.mark.parametrize("ranges", [True, False], ids=["stale partial file", "server without ranges"])
def test_mismatched_content_is_downloaded_again(hub: Any, tmp_path: Path, ranges: bool) -> None:
    hub.files, hub.ranges = {"one.bin": noise(5000)}, ranges
    partial = tmp_path / HUB / "one.bin.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(noise(2000, seed=9))
    [path] = download(tmp_path, "one.bin")
    assert path.read_bytes() == hub.files["one.bin"]
    assert len(hub.asked) == (2 if ranges else 1)


def test_wrong_bytes_never_get_the_final_name(hub: Any, tmp_path: Path) -> None:
    hub.files = {"one.bin": noise(500), "true one.bin": noise(500, seed=3)}
    with pytest.raises(InputError, match=r"one\.bin of .*someone/some-data .*wrong checksum"):
        download(tmp_path, "one.bin")
    assert not (tmp_path / HUB / "one.bin").exists()
    hub.files = {"one.bin": noise(600)}
    hub.claimed = {"one.bin": 500}  # more than was announced
    with pytest.raises(InputError, match="wrong checksum"):
        download(tmp_path, "one.bin")


def test_pieces_are_joined_in_order(hub: Any, tmp_path: Path) -> None:
    hub.files = {f"part_{n}": noise(1000 + n, n) for n in (8, 9, 10)}
    whole = b"".join(hub.files[f"part_{n}"] for n in (8, 9, 10))
    partial = tmp_path / HUB / "whole.index.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(whole[:1500])
    [path] = download(tmp_path, "part_*", joined="whole.index")
    assert path == tmp_path / HUB / "whole.index"
    assert path.read_bytes() == whole
    assert hub.asked == [("part_9", f"bytes={1500 - 1008}-"), ("part_10", None)]
    assert download(tmp_path, "part_*", joined="whole.index") == [path]


def write_pieces(folder: Path) -> Path:
    home = folder / HUB
    home.mkdir(parents=True)
    for number, name in enumerate(("part_aa", "part_ab")):
        (home / name).write_bytes(noise(2_000_000, number))
    return home


def test_local_pieces_are_joined(hub: Any, tmp_path: Path) -> None:
    home = write_pieces(tmp_path)
    (home / "whole.index.partial").write_bytes(b"of a download" * 400_000)
    for _ in range(2):
        assert download(tmp_path, "part_aa", "part_ab", joined="whole.index") == [home / "whole.index"]
        assert (home / "whole.index").read_bytes() == noise(2_000_000) + noise(2_000_000, 1)
        assert sorted(path.name for path in home.iterdir()) == ["part_aa", "part_ab", "whole.index"]


def test_local_pieces_without_disk_space_to_join_them(hub: Any, tmp_path: Path) -> None:
    home = write_pieces(tmp_path)
    with (home / "part_aa").open("r+b") as file:
        file.truncate(shutil.disk_usage(home).free)  # a sparse file
    with pytest.raises(InputError, match=r"and [\d,.]+ GB are free; free some space") as caught:
        download(tmp_path, "part_aa", "part_ab", joined="whole.index")
    assert sorted(path.name for path in home.iterdir()) == ["part_aa", "part_ab"]
    (home / "part_aa").write_bytes(noise(2_000_000))
    subprocess.run(["/bin/sh", "-c", str(caught.value).partition("append them in place: ")[2]], check=True)
    assert (home / "whole.index").read_bytes() == noise(2_000_000) + noise(2_000_000, 1)
    assert sorted(path.name for path in home.iterdir()) == ["whole.index"]


def test_one_local_piece_is_not_enough(hub: Any, tmp_path: Path) -> None:
    (write_pieces(tmp_path) / "part_ab").unlink()
    hub.files = {"part_aa": b"a", "part_ab": b"b"}
    [path] = download(tmp_path, "part_aa", "part_ab", joined="whole.index")
    assert path.read_bytes() == b"ab"


def test_disk_space_is_checked_first(hub: Any, tmp_path: Path) -> None:
    hub.files, hub.claimed = {"one.bin": b"x"}, {"one.bin": 10**18}
    with pytest.raises(InputError, match=r"needs 1,000,000,000\.0 GB .* free; free some space, or .*SLEUTH_DATA"):
        download(tmp_path, "one.bin")
    assert hub.asked == []
    assert list(tmp_path.iterdir()) == []


def test_answers_of_the_hub(hub: Any, tmp_path: Path) -> None:
    hub.files = {"one.bin": b"1", "two.bin": b"2", "../../outside.bin": b"3"}
    with pytest.raises(InputError, match=r"three\.bin.*\.\./\.\./outside\.bin, one\.bin"):
        download(tmp_path, "three.bin")
    download(tmp_path / "folder", "*.bin")
    assert not list(tmp_path.rglob("outside*"))
    hub.status = 401
    with pytest.raises(InputError, match=r"401 .*HF_TOKEN"):
        download(tmp_path, "four.bin")
    hub.page = "<html>Please sign in</html>"
    with pytest.raises(InputError, match="did not answer like the Hub"):
        download(tmp_path, "four.bin")


def test_token_is_sent(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.files = {"one.bin": b"1"}
    download(tmp_path, "one.bin")
    assert hub.tokens == ["Bearer secret"]


def test_two_processes_do_not_write_the_same_file(hub: Any, tmp_path: Path) -> None:
    hub.files = {"one.bin": b"1"}
    partial = tmp_path / HUB / "one.bin.partial"
    partial.parent.mkdir(parents=True)
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading"):
            download(tmp_path, "one.bin")


@pytest.mark.parametrize(("name", "value"), [("ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_OFFLINE", True)])
def test_without_network_the_error_says_which_file_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, name, value)
    path = tmp_path / "RUC-NLPIR/FlashRAG_datasets/nq/train.jsonl"
    with pytest.raises(InputError) as caught:
        public.question_file("nq", "train", tmp_path)
    said = str(caught.value)
    assert "the data set RUC-NLPIR/FlashRAG_datasets cannot be downloaded" in said
    assert "get nq/train.jsonl from https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets" in said
    assert said.endswith(f"and put it at {path}")
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir(parents=True)
    for local in ("train.jsonl.gz", "train.jsonl"):  # a file put there by hand is found
        path.with_name(local).write_bytes(b"")
        assert public.question_file("nq", "train", tmp_path) == path.with_name(local)


def test_error_for_pieces_says_how_to_join_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"part_aa and part_ab from .* \(cat part_\* > e5_Flat.index\) at "):
        public.download(COLLECTIONS["wiki18-e5"], tmp_path)


def test_every_set_has_the_test_part_of_the_protocol() -> None:
    measured = {name: part_of(name, "test") for name in SETS}
    assert measured == {
        **{"nq": "test", "triviaqa": "test", "popqa": "test", "hotpotqa": "dev", "2wikimultihopqa": "dev"},
        **{"musique": "dev", "bamboogle": "test", "searchr1-train": "test"},
    }
    with pytest.raises(InputError, match="popqa has no train part; choose one of test"):
        part_of("popqa", "train")


def test_commands_download_what_they_need(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> int | str | None:
        monkeypatch.setattr("sys.argv", ["sleuth", "data", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLEUTH_DATA", "here")
    hub.files = {"nq/train.jsonl": "".join(json.dumps(row) + "\n" for row in NQ).encode()}
    assert run("prepare", "nq", "--out", "ready") == 0
    first = json.loads((tmp_path / "ready/questions.jsonl").read_text().splitlines()[0])
    assert first == {"id": "nq_train_0", "question": "who is 0", "golden_answers": ["N0"], "data_source": "nq"}
    assert Path("here/RUC-NLPIR/FlashRAG_datasets/nq/train.jsonl").read_bytes() == hub.files["nq/train.jsonl"]
    hub.files = {"wiki-18.jsonl.gz": noise(2000)}
    capsys.readouterr()
    assert run("download", "wiki18", "--folder", "there") == 0
    assert capsys.readouterr().out == f"{2000:>16,}  there/PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz\n"
    assert run("download", "wiki19") == 2
    assert "'wiki19' is not a known download; expected one of wiki18, " in capsys.readouterr().err


def test_environment_variables_of_hugging_face(hub: Any, tmp_path: Path) -> None:
    """They are read when huggingface_hub is imported, so each run is a process."""
    hub.files = {"wiki-18.jsonl.gz": noise(2000)}

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", MAIN, "data", "download", "wiki18", "--folder", str(tmp_path)]
        environment = {**os.environ, "HF_ENDPOINT": hub.address, **variables}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)

    offline = run(HF_HUB_OFFLINE="1")
    assert (offline.returncode, len(offline.stderr.splitlines())) == (2, 1)
    assert "HF_HUB_OFFLINE" in offline.stderr
    assert hub.asked == []
    assert run(HF_TOKEN="secret", HF_HUB_OFFLINE="0").returncode == 0
    assert (tmp_path / "PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz").read_bytes() == hub.files["wiki-18.jsonl.gz"]
    assert hub.tokens == ["Bearer secret"]
