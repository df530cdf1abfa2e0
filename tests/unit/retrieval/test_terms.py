"""What a lexical index keeps of a text."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from sleuth.retrieval.terms import stemmed, words

TEXTS = {
    "case and punctuation": ("Paris, PARIS; (paris)!", ["paris", "paris", "paris"]),
    "stop words": ("the history of the city", ["history", "city"]),
    "nothing but stop words": ("to be or not to be", []),
    "possessive": ("Arthur's magazine", ["arthur", "magazine"]),
    "single digits": ("Apollo 8 and 11", ["apollo", "8", "11"]),
    "composed or not": ("caf\u00e9 cafe\u0301", ["caf\u00e9", "caf\u00e9"]),
    "wide letters": ("Ｔｏｋｙｏ", ["tokyo"]),
    "another script": ("Москва 東京", ["москва", "東京"]),
    "half a surrogate pair": ("ok \ud800", ["ok"]),
    "blank": (" \n\t", []),
}


@pytest.mark.parametrize(("text", "found"), TEXTS.values(), ids=TEXTS)
def test_words(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_stems() -> None:
    assert stemmed(["cities", "city", "painted", "painting"]) == ["citi", "citi", "paint", "paint"]


def test_stems_in_many_threads() -> None:
    rows = [[f"word{number}ing", "cities"] for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(stemmed, rows)) == [stemmed(row) for row in rows]
