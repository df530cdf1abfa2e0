"""Languages of texts."""

import pytest
import Stemmer

from sleuth.corpus.languages import STEMMERS, UNDETERMINED, detect_language

# The first article of the Universal Declaration of Human Rights.
ARTICLES = {
    "en": "All human beings are born free and equal in dignity and rights.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "zh": "人人生而自由，在尊严和权利上一律平等。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}


@pytest.mark.parametrize(("code", "text"), ARTICLES.items())
def test_language_of_a_sentence(code: str, text: str) -> None:
    assert detect_language(text) == code


def test_language_of_a_long_text_is_that_of_most_of_it() -> None:
    assert detect_language(f"{ARTICLES['en']}\n" + f"{ARTICLES['de']}\n" * 100) == "de"
    assert detect_language(f"{ARTICLES['en']}\n" * 1000) == "en"


@pytest.mark.parametrize("text", ["", "Words.", "123 456\n" * 100, "a;b;c\n" * 100])
def test_too_little_text(text: str) -> None:
    assert detect_language(text) == UNDETERMINED


def test_every_stemmer_exists() -> None:
    assert set(STEMMERS.values()) <= set(Stemmer.algorithms())
