"""Pages by URL, without loading the file."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sleuth.corpus.pages import PageStore
from sleuth.errors import InputError


def page(url: str, **more: object) -> dict[str, Any]:
    return {"url": url, "contents": f"page of {url}", **more}


def write(path: Path, *pages: dict[str, Any]) -> Path:
    path.write_text("\n".join("\n" + json.dumps(each) for each in pages))
    return path


def test_page_is_found_by_url(tmp_path: Path) -> None:
    pages = [page(f"https://x.org/{number}", title="é", number=number) for number in range(300)]
    store = PageStore(write(tmp_path / "pages.jsonl", *pages))
    assert len(store) == 300
    assert [store.get(each["url"]) for each in pages] == pages
    assert [store.get(url) for url in ("https://x.org/300", "", "\ud800")] == [None, None, None]


def test_last_page_of_a_url_counts(tmp_path: Path) -> None:
    store = PageStore(write(tmp_path / "pages.jsonl", page("a", n=1), page("b"), page("a", n=2)))
    assert store.get("a") == page("a", n=2)


def test_title_in_the_path_matches_the_query_form(tmp_path: Path) -> None:
    wiki = "https://en.wikipedia.org/w/index.php"
    store = PageStore(write(tmp_path / "pages.jsonl", page(f"{wiki}?title=Oslo"), page(f"{wiki}/Bergen")))
    assert store.get(f"{wiki}/Oslo") == store.get(f"{wiki}?title=Oslo") == page(f"{wiki}?title=Oslo")
    assert store.get(f"{wiki}/Bergen") == page(f"{wiki}/Bergen")
    assert store.get(f"{wiki}?title=Bergen") is None


def test_positions_are_cached_beside_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", page("a"), page("b"))
    heard: list[tuple[str, int, int]] = []
    PageStore(path, lambda *report: heard.append(report))
    assert heard[-1] == ("reading pages", path.stat().st_size, path.stat().st_size)
    heard.clear()
    assert PageStore(path, lambda *report: heard.append(report)).get("b") == page("b")
    assert heard == []


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", page("a"), page("b"))
    PageStore(path)
    changed = path.stat().st_mtime_ns
    write(path, page("a"), page("c"))
    assert PageStore(path).get("c") == page("c")
    write(path, page("d"), page("c"))
    os.utime(path, ns=(changed, changed))
    assert PageStore(path).get("d") == page("d")


@pytest.mark.parametrize("content", [b"", b"nothing", b"cut"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "pages.jsonl", page("a"))
    PageStore(path)
    beside = tmp_path / "pages.jsonl.urls.npy"
    beside.write_bytes(content if content != b"cut" else beside.read_bytes()[:-1])
    assert PageStore(path).get("a") == page("a")
    np.save(beside, np.zeros(3))
    assert PageStore(path).get("a") == page("a")


def test_positions_stay_in_memory_in_a_read_only_folder(tmp_path: Path) -> None:
    path = write(tmp_path / ("p" * 250), page("a"))
    assert PageStore(path).get("a") == page("a")
    assert list(tmp_path.iterdir()) == [path]


def test_urls_with_equal_digests_are_distinguished(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", page("a"), page("b"))
    PageStore(path)
    beside = tmp_path / "pages.jsonl.urls.npy"
    table = np.load(beside)
    table["digest"][1:] = table["digest"][1]
    np.save(beside, table)
    store = PageStore(path)
    assert sorted([store.get("a") is None, store.get("b") is None]) == [False, True]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Expecting property name"),
        ("[1]", r"it holds \[1\]"),
        ('{"contents": "x"}', '"url" is missing'),
        ('{"url": 7, "contents": "x"}', '"url" is 7'),
        ('{"url": "a"}', '"contents" is missing'),
        ('{"url": "a", "contents": "\\ud800"}', ".*surrogates not allowed"),
    ],
)
def test_bad_page_is_reported_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(InputError, match=rf'line 2: {problem}.*expected a JSON object with the strings "url"'):
        PageStore(path)


def test_file_without_pages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="are empty"):
        PageStore(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="do not exist"):
        PageStore(tmp_path / "nowhere.jsonl")
    (tmp_path / "pages.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError, match="gunzip"):
        PageStore(tmp_path / "pages.jsonl.gz")


def test_file_truncated_in_use_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", page("a"))
    store = PageStore(path)
    path.write_text("")
    with pytest.raises(InputError, match="changed while in use"):
        store.get("a")
