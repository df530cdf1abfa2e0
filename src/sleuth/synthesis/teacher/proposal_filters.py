"""Filters for the mistakes that language models make when they write questions; rules do not make them."""

import re
from collections.abc import Callable

from sleuth.synthesis.candidate import Candidate
from sleuth.synthesis.filters import KEPT_WORDS, PREFIX, fold
from sleuth.synthesis.vocabulary import GENERIC, content_words, word_set, words

STEM = 4  # letters by which the words of an answer and a question are compared
CIRCULAR = 0.8  # share of the answer's words that the question may not contain
LONGEST_QUOTE = 30  # words
NEGATION = re.compile(r"\b(?:not|never|cannot|without|non)\b|n't\b", re.IGNORECASE)
VERBS = word_set(
    "is are was were be been being has have had can may must should will would does do did defaults default means"
)
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")  # a capitalised word inside a sentence
DEFAULT = re.compile(r"\bdefault|if not set|unset|otherwise|unless|omitted|initial")
CONDITION = re.compile(r"\s*(?:If|When|Unless|In case)\b([^,]*),")
SEVERAL = re.compile(
    r"(?:in [^,]+, )?(?:what|which) (?:are|options|commands|types|kinds|files|values|parameters)\b", re.IGNORECASE
)
INDEX_PAGE = re.compile(r"(?:general |book )?index|(?:table of )?contents", re.IGNORECASE)


def quote_is_statement(candidate: Candidate) -> bool:
    """The quote says something about the answer: it is a sentence, not a heading, a label or a line of code."""
    quote = candidate.evidence[-1].quote
    said = [word.lower() for word in words(quote)]
    has_verb = any(word in VERBS or word.endswith("ed") or (word.endswith("s") and len(word) > 3) for word in said)
    return has_verb and len(said) > len(words(candidate.answer)) + 1


def quote_is_short(candidate: Candidate) -> bool:
    """The quote is one statement: a longer one says several things, and the answer may belong to another."""
    return len(words(candidate.evidence[-1].quote)) <= LONGEST_QUOTE


def keeps_negation(candidate: Candidate) -> bool:
    """If the quote says what is not so, the question does too."""
    return not NEGATION.search(candidate.evidence[-1].quote) or bool(NEGATION.search(candidate.question))


def quote_has_subject(candidate: Candidate) -> bool:
    """Most words of the question stand in the titles and the quotes: the quote is about what the question asks."""
    asked = [word for word in set(content_words(candidate.question)) if word not in GENERIC]
    text = " ".join(f"{each.passage.title} {each.quote}" for each in candidate.evidence)
    known = {word[:PREFIX] for word in content_words(text)}
    return sum(word[:PREFIX] in known for word in asked) >= KEPT_WORDS * len(asked)


def names_are_known(candidate: Candidate) -> bool:
    """Every capitalised name in the question stands in a passage; small models repeat names of the prompt."""
    text = fold(" ".join(each.passage.contents for each in candidate.evidence))
    return all(name.lower()[:PREFIX] in text for name in NAME.findall(candidate.question))


def default_is_stated(candidate: Candidate) -> bool:
    """A question for a default has a quote that states one."""
    return "default" not in candidate.question.lower() or bool(DEFAULT.search(fold(candidate.evidence[-1].quote)))


def keeps_condition(candidate: Candidate) -> bool:
    """If the quote begins with a condition, the question mentions it."""
    condition = CONDITION.match(candidate.evidence[-1].quote)
    wanted = {word[:PREFIX] for word in content_words(condition[1])} if condition else set()
    return not wanted or bool(wanted & {word[:PREFIX] for word in content_words(candidate.question)})


def is_complete(candidate: Candidate) -> bool:
    """A question for several things is answered with several."""
    return not SEVERAL.match(candidate.question) or bool(re.search(r",| and | or ", candidate.answer))


def is_not_circular(candidate: Candidate) -> bool:
    """The answer does not only repeat words of the question in other forms."""
    said = [word[:STEM] for word in content_words(candidate.answer) if word not in GENERIC]
    asked = {word[:STEM] for word in content_words(candidate.question)}
    return not said or sum(word in asked for word in said) < CIRCULAR * len(said)


def is_text_page(candidate: Candidate) -> bool:
    """The evidence is not the index or the table of contents of a book."""
    titles = (each.passage.title.partition(" > ")[0].strip() for each in candidate.evidence)
    return not any(INDEX_PAGE.fullmatch(title) for title in titles)


# In the order in which they are applied; the names are those of the report.
PROPOSAL_FILTERS: dict[str, Callable[[Candidate], bool]] = {
    "page of an index": is_text_page,
    "quote not a statement": quote_is_statement,
    "quote too long": quote_is_short,
    "quote about something else": quote_has_subject,
    "negation left out": keeps_negation,
    "name not in passage": names_are_known,
    "default not stated": default_is_stated,
    "condition left out": keeps_condition,
    "one of several": is_complete,
    "circular": is_not_circular,
}


def failed_proposal_filter(candidate: Candidate) -> str | None:
    """Return the name of the first of these filters that a candidate fails, or None."""
    return next((name for name, passes in PROPOSAL_FILTERS.items() if not passes(candidate)), None)
