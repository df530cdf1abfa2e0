"""Text analysis: words, stems and stop words."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from sleuth.errors import ConfigError
from sleuth.retrieval.bm25.analyzer import Analyzer, QueryAnalyzer, fold, stemmer_of

ENGLISH = Analyzer("english")

TEXTS = {
    "case and punctuation": ("Paris, PARIS; (paris)!", ["paris", "paris", "paris"]),
    "stop words": ("the history of the city", ["history", "city"]),
    "nothing but stop words": ("to be or not to be", []),
    "possessive": ("Arthur's magazine", ["arthur", "magazine"]),
    "possessive beside other letters": ("Müller’s magazine", ["müller", "magazine"]),
    "single digits": ("Apollo 8 and 11", ["apollo", "8", "11"]),
    "joined by a line": ("snake_case", ["snake_case"]),
    "composed or not": ("caf\u00e9 cafe\u0301", ["caf\u00e9", "caf\u00e9"]),
    "wide letters": ("Ｔｏｋｙｏ", ["tokyo"]),
    "another script": ("Москва 東京", ["москва", "東京"]),
    "a script without spaces": ("東京都は", ["東京", "京都", "都は"]),
    "a lone sign of it": ("龍 x", ["龍"]),
    "beside letters": ("東京タワーtower2", ["東京", "京タ", "タワ", "ワー", "tower2"]),
    "vowel signs": ("हिन्दी में", ["हिन्दी", "में"]),
    "points": ("مُحَمَّد", ["مُحَمَّد"]),
    "signs beside a script without spaces": ("東京 हिन्दी", ["東京", "हिन्दी"]),
    "marks of signs": ("1\ufe0f\u20e3 ❤\ufe0f", ["1"]),
    "a capital that grows": ("İzmir", ["izmir"]),
    "half a surrogate pair": ("ok \ud800", ["ok"]),
    "blank": (" \n\t", []),
}


@pytest.mark.parametrize(("text", "found"), TEXTS.values(), ids=TEXTS)
def test_words(text: str, found: list[str]) -> None:
    assert ENGLISH.words(text) == found


def test_stems() -> None:
    assert ENGLISH.stem(["cities", "city", "painted", "painting"]) == ["citi", "citi", "paint", "paint"]


def test_stems_of_another_language_keep_all_words() -> None:
    german = Analyzer("german")
    assert german.stem(german.words("die Städte war an in")) == ["die", "stadt", "war", "an", "in"]


def test_no_stemmer() -> None:
    plain = Analyzer("none")
    assert plain.stem(plain.words("The cities")) == ["the", "cities"]


def test_term_of_a_token() -> None:
    assert [ENGLISH.term(run) for run in ("cities", "the", "s", "8")] == ["citi", None, None, "8"]


@pytest.mark.parametrize(
    ("stemmer", "remedy"), [("englsh", "did you mean english"), ("klingon", "expected auto, none or one of arabic, ")]
)
def test_unknown_stemmer(stemmer: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"'{stemmer}'; {remedy}"):
        Analyzer(stemmer)


def test_stems_in_many_threads() -> None:
    rows = [[f"word{number}ing", "cities"] for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ENGLISH.stem, rows)) == [ENGLISH.stem(row) for row in rows]


@pytest.mark.parametrize(
    ("word", "folded"),
    [
        ("café", "cafe"),
        ("cafe\u0301", "cafe"),
        ("größe", "grosse"),
        ("łódź", "lodz"),
        ("œuvre", "oeuvre"),
        ("άνθρωπος", "ανθρωπος"),
        ("ёлка", "елка"),
        ("йод", "йод"),
        ("हिन्दी", "हिन्दी"),
        ("が", "が"),
        ("plain", "plain"),
    ],
)
def test_folding(word: str, folded: str) -> None:
    assert fold(word) == folded


def test_second_version() -> None:
    second = Analyzer("english", 2)
    assert second.words("東京都は ไทย龍") == ["東京", "京都", "都は", "ไท", "ทย", "ย龍"]
    assert second.words("เมือง") == ["เมื", "มือ", "อง"]  # a letter keeps its marks
    assert [second.term(token) for token in ("cafés", "cafes", "the")] == ["cafe", "cafe", None]
    assert Analyzer("none", 2).stem(["Café".lower()]) == ["cafe"]
    assert second.variants("café") == ("café",)
    assert second.variants("résumés") == ("résumés", "resumes")
    assert ENGLISH.variants("résumés") == ("résumés",)


@pytest.mark.parametrize("text", [text for text, _ in TEXTS.values() if text.isascii()])
def test_second_version_equals_the_first_on_ascii(text: str) -> None:
    second = Analyzer("english", 2)
    assert second.words(text) == ENGLISH.words(text)
    assert second.stem(second.words(text)) == ENGLISH.stem(ENGLISH.words(text))


def test_stemmer_by_language() -> None:
    assert [stemmer_of("auto", code) for code in ("de", "zh", "", "und")] == ["german", "none", "english", "english"]
    assert stemmer_of("french", "de") == "french"


def test_query_has_the_terms_of_every_language() -> None:
    query = QueryAnalyzer(["english", "german"], 2)
    assert [query.terms(token) for token in query.tokens("the Städte painting")] == [
        [],
        ["stadte", "stadt"],
        ["paint", "painting"],
    ]
