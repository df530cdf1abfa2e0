"""EM, F1 and cover-EM against a second implementation, written from the words of the protocol, on 10,000 pairs.

Lower case, punctuation removed, the articles a, an and the removed, spaces collapsed; a text of which nothing is left
then is taken as written. Nothing matches an empty text. EM: equal to any target. F1: the
harmonic mean of word precision and recall, of the best target. Cover-EM: the words of a target stand in the answer.
"""

import random
from collections.abc import Iterator, Sequence

import pytest

from sleuth.reward.answers import ANSWERS

PAIRS = 10_000
MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
WORDS = (
    "the", "The", "THE", "a", "an", "An", "oslo", "Oslo", "São", "Paulo", "straße", "STRASSE", "İstanbul", "ΣΊΣΥΦΟΣ",
    "東京", "naïve", "1,000", "3.14", "O'Brien", "rock'n'roll", "the–end", "an—other", "a·b", "co-op", "U.S.", "$5",
    "½", "Ⅷ", "🙂", "e\u0301te\u0301", "\u200bzero", "them", "anthem", "ª", "a\u0308", "…", "「the」",
    "x_y", "A.", "(an)",
)  # fmt: skip
SPACES = (" ", "  ", "\t", "\n", "\u00a0", "\u3000", "")


def words(text: str) -> list[str]:
    kept = "".join(letter for letter in text.lower() if letter not in MARKS)
    runs, run = [], ""
    for letter in kept:
        if letter.isalnum() or letter == "_":
            run += letter
            continue
        runs += [" " if run in ("a", "an", "the") else run, letter]
        run = ""
    runs.append(" " if run in ("a", "an", "the") else run)
    return "".join(runs).split() or text.lower().split()


def em(answer: str, golds: Sequence[str]) -> float:
    said = words(answer)
    return 1.0 if said and said in [words(gold) for gold in golds] else 0.0


def f1(answer: str, golds: Sequence[str]) -> float:
    return max(_f1(words(answer), words(gold)) for gold in golds)


def _f1(said: list[str], gold: list[str]) -> float:
    left, common = list(gold), 0
    for word in said:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def cover_em(answer: str, golds: Sequence[str]) -> float:
    return float(any(_within(words(gold), words(answer)) for gold in golds))


def _within(gold: list[str], said: list[str]) -> bool:
    return bool(gold) and any(said[start : start + len(gold)] == gold for start in range(len(said)))


def pairs() -> Iterator[tuple[str, list[str]]]:
    dice = random.Random(20_260)
    for _ in range(PAIRS):
        golds = [_text(dice) for _ in range(dice.randint(1, 3))]
        answer = dice.choice((_text(dice), _changed(dice.choice(golds), dice), _text(dice) + dice.choice(golds)))
        yield answer, golds


def _text(dice: random.Random) -> str:
    return "".join(
        dice.choice(WORDS) + dice.choice(SPACES) + (dice.choice(MARKS) if dice.random() < 0.2 else "")
        for _ in range(dice.randint(0, 5))
    )


def _changed(text: str, dice: random.Random) -> str:
    """The same answer in other clothes: case, marks, articles, spaces."""
    dressed = dice.choice((text, text.upper(), text.lower(), text.title(), f"the {text}", f"{text}.", f" {text} \n"))
    return dressed + dice.choice(("", " ", " an", "!", " oslo"))


@pytest.mark.parametrize(("name", "second"), [("em", em), ("f1", f1), ("cover_em", cover_em)])
def test_the_metric_agrees_with_a_second_implementation(name: str, second: object) -> None:
    assert callable(second)
    seen = set()
    for answer, golds in pairs():
        value = ANSWERS[name](answer, golds)
        assert value == pytest.approx(second(answer, golds), abs=1e-12), (answer, golds)
        seen.add(value)
    # A test on pairs that all agree, or all do not, would show nothing.
    assert {0.0, 1.0} <= seen
