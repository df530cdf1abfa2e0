"""The thoughts of gold demonstrations: plain sentences, varied by dice, that say what was found and what is needed."""

import random
import re
from collections.abc import Iterable, Sequence

from sleuth.corpus.chunks import sentences
from sleuth.records import Passage
from sleuth.reward.answers import cover_em, normalise

WORDS = 50  # of a sentence that a thought repeats
CODE = 3  # letters that an answer may have which is only a code: NO, ME, LAD
NAMED = (
    "I need to find out about {title}.",
    "The question is about {title}, so I look that up first.",
    "To answer this I start with {title}.",
    "First I should read about {title}.",
)
UNNAMED = (
    "I do not know this, so I search for it.",
    "I should look this up.",
    "Let me search for what is asked.",
    "I need to find a passage that tells this.",
)
NEXT = (
    "Now I need to find out about {title}.",
    "Next I look up {title}.",
    "I look up {title} too.",
    "So I search for {title} now.",
)
AGAIN = (
    "That is not all I need, so I search again.",
    "There is more to find out.",
    "I have to look further.",
)
FOUND = (
    "The passage about {title} says: {sentence}",
    "I read about {title}: {sentence}",
    "From what I found on {title}: {sentence}",
    "About {title} it says: {sentence}",
)
SO = (
    "So the answer is {answer}.",
    "That makes the answer {answer}.",
    "This answers the question: {answer}.",
    "Therefore it is {answer}.",
)

GUESSED = (
    "This does not tell it. I think it is {answer}.",
    "None of this says it, so I guess: {answer}.",
    "I did not find it. Most likely it is {answer}.",
    "It is not said here. My guess is {answer}.",
)


def first(title: str | None, dice: random.Random) -> str:
    """Before the first search: for something that the question names, or for what it asks."""
    return dice.choice(UNNAMED) if title is None else dice.choice(NAMED).format(title=title)


def further(title: str | None, dice: random.Random) -> str:
    """Before a later search: what is still to be found."""
    return dice.choice(AGAIN) if title is None else dice.choice(NEXT).format(title=title)


def last(answer: str, dice: random.Random) -> str:
    """Before an answer that was read."""
    return _ending(dice.choice(SO), answer)


def guess(answer: str, dice: random.Random) -> str:
    """Before an answer that was not."""
    return _ending(dice.choice(GUESSED), answer)


def _ending(said: str, answer: str) -> str:
    said = said.format(answer=answer.rstrip("."))
    return said[:-1] if answer.endswith(("?", "!")) else said


def as_read(golds: Sequence[str], texts: Iterable[str]) -> str:
    """The right answer that stands in one of the texts, spelled as there, so that it can be copied; else the first."""
    held = list(texts)
    exact = ((gold, 0) for gold in golds if gold == golds[0] or not _common(gold))
    in_any_case = ((gold, re.IGNORECASE) for gold in golds if len(gold) > CODE)
    for gold, flags in (*exact, *in_any_case):
        whole = re.compile(rf"(?<!\w){re.escape(gold)}(?!\w)", flags)
        if found := next(filter(None, map(whole.search, held)), None):
            return found[0]
    return golds[0]


def _common(gold: str) -> bool:
    """Whether it may stand in any text: codes such as it (Italian), no (Norway) and me (Maine) are words too."""
    return len(gold) <= CODE and gold.isalpha() and gold.islower()


def found(passage: Passage, sought: Sequence[str], dice: random.Random) -> str:
    """What a passage says, in the sentence that matters."""
    return dice.choice(FOUND).format(title=passage.title, sentence=telling(passage.text, sought))


def telling(text: str, sought: Sequence[str]) -> str:
    """The first sentence that holds the first of the texts sought that any holds; else the one most like them."""
    every = [sentence.strip() for line in text.splitlines() for sentence in sentences(line) if sentence.strip()]
    for wanted in sought:
        for sentence in every:
            if cover_em(sentence, (wanted,)):
                return _short(sentence)
    words = set(normalise(" ".join(sought)).split())
    return _short(max(every, key=lambda each: len(words & set(normalise(each).split())), default=""))


def _short(sentence: str) -> str:
    words = sentence.split()
    return " ".join(words) if len(words) <= WORDS else " ".join(words[:WORDS]) + " ..."
