"""Downloads against a server that behaves as the hub does, on good days and on bad ones."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sleuth.cli.main import main
from sleuth.corpus.datasets import fetch
from sleuth.corpus.datasets.catalogue import COLLECTIONS, SETS, Collection, part_of
from sleuth.errors import InputError

HUB = "someone/some-data"
NQ = [{"id": f"train_{n}", "question": f"who is {n}", "golden_answers": [f"N{n}"]} for n in range(5)]


def noise(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def download(folder: Path, *patterns: str, joined: str | None = None) -> list[Path]:
    return fetch.download(Collection(HUB, patterns, joined), folder, pause=0.001)


def test_files_come_whole_by_pattern_and_keep_their_paths(shelf: Any, tmp_path: Path) -> None:
    shelf.files = {
        **{"a b/one.bin": noise(5000), "a b/two.bin": noise(3000, 1), "three.txt": b"3", "empty.bin": b""},
        **{"README.md": b"page", ".gitattributes": b""},
    }
    shelf.small = ("three.txt", "README.md", ".gitattributes")
    shelf.claimed = {}
    paths = download(tmp_path, "*")
    home = tmp_path / HUB
    assert sorted(paths) == sorted(home / name for name in ("a b/one.bin", "a b/two.bin", "three.txt", "empty.bin"))
    assert {str(path.relative_to(home)): path.read_bytes() for path in paths}.items() <= shelf.files.items()
    assert not list(tmp_path.rglob("*.partial"))
    before = len(shelf.asked)
    assert download(tmp_path, "a b/one.bin", "three.txt") == [home / "a b/one.bin", home / "three.txt"]
    assert len(shelf.asked) == before


def test_a_transfer_that_breaks_off_goes_on(shelf: Any, tmp_path: Path) -> None:
    shelf.files, shelf.cuts, shelf.after = {"one.bin": noise(5000)}, 3, 1500
    [path] = download(tmp_path, "one.bin")
    assert path.read_bytes() == shelf.files["one.bin"]
    assert shelf.asked == [("one.bin", None), *(("one.bin", f"bytes={1500 * n}-") for n in (1, 2, 3))]


def test_a_killed_download_goes_on_in_the_next_command(shelf: Any, tmp_path: Path) -> None:
    shelf.files, shelf.cuts, shelf.after = {"one.bin": noise(5000)}, 100, 0
    partial = tmp_path / HUB / "one.bin.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(shelf.files["one.bin"][:3210])
    with pytest.raises(InputError, match=r"one\.bin of someone/some-data broke off after 3,210 of 5,000 bytes .*again"):
        download(tmp_path, "one.bin")
    assert not (tmp_path / HUB / "one.bin").exists()
    shelf.cuts, shelf.asked = 0, []
    [path] = download(tmp_path, "one.bin")
    assert shelf.asked == [("one.bin", "bytes=3210-")]
    assert path.read_bytes() == shelf.files["one.bin"]
    assert not partial.exists()


@pytest.mark.parametrize("ranges", [True, False], ids=["what was there is old", "a server without ranges"])
def test_what_does_not_go_together_is_fetched_anew(shelf: Any, tmp_path: Path, ranges: bool) -> None:
    shelf.files, shelf.ranges = {"one.bin": noise(5000)}, ranges
    partial = tmp_path / HUB / "one.bin.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(noise(2000, seed=9))
    [path] = download(tmp_path, "one.bin")
    assert path.read_bytes() == shelf.files["one.bin"]
    assert len(shelf.asked) == (2 if ranges else 1)


def test_wrong_bytes_never_get_the_name(shelf: Any, tmp_path: Path) -> None:
    shelf.files = {"one.bin": noise(500), "true one.bin": noise(500, seed=3)}
    with pytest.raises(InputError, match=r"one\.bin of someone/some-data came twice with other bytes"):
        download(tmp_path, "one.bin")
    assert not (tmp_path / HUB / "one.bin").exists()
    shelf.files = {"one.bin": noise(600)}
    shelf.claimed = {"one.bin": 500}  # more than was announced
    with pytest.raises(InputError, match="came twice with other bytes"):
        download(tmp_path, "one.bin")


def test_pieces_are_put_together_in_their_order(shelf: Any, tmp_path: Path) -> None:
    shelf.files = {f"part_{n}": noise(1000 + n, n) for n in (8, 9, 10)}
    whole = b"".join(shelf.files[f"part_{n}"] for n in (8, 9, 10))
    partial = tmp_path / HUB / "whole.index.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(whole[:1500])
    [path] = download(tmp_path, "part_*", joined="whole.index")
    assert path == tmp_path / HUB / "whole.index"
    assert path.read_bytes() == whole
    assert shelf.asked == [("part_9", f"bytes={1500 - 1008}-"), ("part_10", None)]
    assert download(tmp_path, "part_*", joined="whole.index") == [path]


def brought(folder: Path) -> Path:
    home = folder / HUB
    home.mkdir(parents=True)
    for number, name in enumerate(("part_aa", "part_ab")):
        (home / name).write_bytes(noise(2_000_000, number))
    return home


def test_pieces_brought_by_hand_are_put_together(shelf: Any, tmp_path: Path) -> None:
    home = brought(tmp_path)
    (home / "whole.index.partial").write_bytes(b"of a download" * 400_000)
    for _ in range(2):
        assert download(tmp_path, "part_aa", "part_ab", joined="whole.index") == [home / "whole.index"]
        assert (home / "whole.index").read_bytes() == noise(2_000_000) + noise(2_000_000, 1)
        assert sorted(path.name for path in home.iterdir()) == ["part_aa", "part_ab", "whole.index"]


def test_pieces_brought_by_hand_without_room_to_put_them_together(shelf: Any, tmp_path: Path) -> None:
    home = brought(tmp_path)
    with (home / "part_aa").open("r+b") as file:
        file.truncate(shutil.disk_usage(home).free)  # of holes, which take no room
    with pytest.raises(InputError, match=r"to spare, and there are [\d,.]+ GB free; free some space, or") as caught:
        download(tmp_path, "part_aa", "part_ab", joined="whole.index")
    assert sorted(path.name for path in home.iterdir()) == ["part_aa", "part_ab"]
    (home / "part_aa").write_bytes(noise(2_000_000))
    subprocess.run(["/bin/sh", "-c", str(caught.value).partition("which uses them up: ")[2]], check=True)
    assert (home / "whole.index").read_bytes() == noise(2_000_000) + noise(2_000_000, 1)
    assert sorted(path.name for path in home.iterdir()) == ["whole.index"]


def test_one_piece_brought_by_hand_is_not_all(shelf: Any, tmp_path: Path) -> None:
    (brought(tmp_path) / "part_ab").unlink()
    shelf.files = {"part_aa": b"a", "part_ab": b"b"}
    [path] = download(tmp_path, "part_aa", "part_ab", joined="whole.index")
    assert path.read_bytes() == b"ab"


def test_the_disk_is_looked_at_first(shelf: Any, tmp_path: Path) -> None:
    shelf.files, shelf.claimed = {"one.bin": b"x"}, {"one.bin": 10**18}
    with pytest.raises(InputError, match=r"needs 1,000,000,000\.0 GB more .* free; free some space, or name a folder"):
        download(tmp_path, "one.bin")
    assert shelf.asked == []
    assert list(tmp_path.iterdir()) == []


def test_what_the_hub_says(shelf: Any, tmp_path: Path) -> None:
    shelf.files = {"one.bin": b"1", "two.bin": b"2", "../../outside.bin": b"3"}
    with pytest.raises(
        InputError, match=r"has no file three\.bin \(any more\); it has \.\./\.\./outside\.bin, one\.bin"
    ):
        download(tmp_path, "three.bin")
    download(tmp_path / "folder", "*.bin")
    assert not list(tmp_path.rglob("outside*"))
    shelf.status = 401
    with pytest.raises(InputError, match=r"the server says 401 Unauthorized\).*HF_TOKEN"):
        download(tmp_path, "four.bin")
    shelf.page = "<html>Please sign in</html>"
    with pytest.raises(InputError, match="answers with no list of files"):
        download(tmp_path, "four.bin")


def test_a_token_is_sent(shelf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    shelf.files = {"one.bin": b"1"}
    download(tmp_path, "one.bin")
    assert shelf.tokens == ["Bearer secret"]


def test_two_processes_do_not_write_one_file(shelf: Any, tmp_path: Path) -> None:
    shelf.files = {"one.bin": b"1"}
    partial = tmp_path / HUB / "one.bin.partial"
    partial.parent.mkdir(parents=True)
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading"):
            download(tmp_path, "one.bin")


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "HF_HUB_OFFLINE"])
def test_without_a_network_it_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}[variable])
    path = tmp_path / "RUC-NLPIR/FlashRAG_datasets/nq/train.jsonl"
    with pytest.raises(InputError) as caught:
        fetch.question_file("nq", "train", tmp_path)
    said = str(caught.value)
    assert "nq/train.jsonl of the data set RUC-NLPIR/FlashRAG_datasets cannot be fetched (" in said
    assert said.endswith(f"and put it at {path}")
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir(parents=True)
    for name in ("train.jsonl.gz", "train.jsonl"):  # where it is put by hand, it is found
        path.with_name(name).write_bytes(b"")
        assert fetch.question_file("nq", "train", tmp_path) == path.with_name(name)


def test_joined_pieces_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"part_aa and part_ab of the data set .* \(cat part_\* > e5_Flat.index\) at "):
        fetch.download(COLLECTIONS["wiki18-e5"], tmp_path)


def test_every_set_of_the_protocol_has_its_measured_part() -> None:
    measured = {name: part_of(name, "test") for name in SETS}
    assert measured == {
        **{"nq": "test", "triviaqa": "test", "popqa": "test", "hotpotqa": "dev", "2wikimultihopqa": "dev"},
        **{"musique": "dev", "bamboogle": "test", "searchr1-train": "test"},
    }
    with pytest.raises(InputError, match="popqa has no train part; it has test: choose one"):
        part_of("popqa", "train")


def test_the_commands_fetch_what_they_need(
    shelf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> int | str | None:
        monkeypatch.setattr("sys.argv", ["sleuth", "data", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLEUTH_DATA", "here")
    shelf.files = {"nq/train.jsonl": "".join(json.dumps(row) + "\n" for row in NQ).encode()}
    assert run("prepare", "nq", "--out", "ready") == 0
    first = json.loads((tmp_path / "ready/questions.jsonl").read_text().splitlines()[0])
    assert first == {"id": "nq_train_0", "question": "who is 0", "golden_answers": ["N0"], "data_source": "nq"}
    assert Path("here/RUC-NLPIR/FlashRAG_datasets/nq/train.jsonl").read_bytes() == shelf.files["nq/train.jsonl"]
    shelf.files = {"wiki-18.jsonl.gz": noise(2000)}
    capsys.readouterr()
    assert run("download", "wiki18", "--folder", "there") == 0
    assert capsys.readouterr().out == f"{2000:>16,}  there/PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz\n"
    assert run("download", "wiki19") == 2
    assert "there is nothing to download by the name 'wiki19'; expected wiki18, " in capsys.readouterr().err
