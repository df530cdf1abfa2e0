"""Verb forms, dates and nationalities."""

import pytest

from sleuth.synthesis.cloze.english import active_past, do_support, is_earlier, nationalities_differ, nationality_of


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("won", ("did", "win")),
        ("founded", ("did", "found")),
        ("found", ("did", "find")),
        ("starred", ("did", "star")),
        ("married", ("did", "marry")),
        ("plays", ("does", "play")),
        ("quickly", None),
    ],
)
def test_do_support(verb: str, expected: tuple[str, str] | None) -> None:
    assert do_support(verb) == expected


@pytest.mark.parametrize(("participle", "past"), [("written", "wrote"), ("directed", "directed"), ("film", None)])
def test_active_past(participle: str, past: str | None) -> None:
    assert active_past(participle) == past


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ("1 May 1900", "May 2, 1900", True),
        ("1901", "May 2, 1900", False),
        ("1900", "May 2, 1900", None),
        ("1 May 1900", "May 1, 1900", None),
    ],
)
def test_is_earlier(one: str, other: str, answer: bool | None) -> None:
    assert is_earlier(one, other) is answer


def test_nationalities() -> None:
    assert nationality_of("a South African politician") == "South African"
    assert nationality_of("a French and Italian film") is None
    assert nationalities_differ("French", "Italian")
    assert not nationalities_differ("British", "Scottish")
