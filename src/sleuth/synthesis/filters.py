"""Filters of question candidates that need no model: each returns whether a candidate passes."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sleuth.corpus.chunks import sentences
from sleuth.corpus.datasets.merge import question_key
from sleuth.reward.answers import comparable, cover_em, normalise
from sleuth.synthesis.candidate import Candidate, Evidence
from sleuth.synthesis.vocabulary import GENERIC, Vocabulary, content_words, is_code, overlap, word_set, words

LONGEST_ANSWER = 12  # words
NEAR_QUOTE = 0.85  # word overlap at which an imprecise quote is replaced with the sentence of the passage
SAME_ANSWER = 0.6  # word overlap of two questions with one answer, at which they are duplicates
PREFIX = 5  # letters by which the words of a question and a passage are compared
KEPT_WORDS = 0.6  # share of the question's words that must stand in the evidence passages
CLAUSE_STARTS = word_set("it they this these those he she there because if when while since to yes no not that which")
CLAUSE_VERBS = word_set("is are was were has have can may must should will would does do")
SENTENCES_BEFORE = 3  # a quote's subject is often named before it
SPACES = re.compile(r"\s+")
# Typographic signs are read as ASCII; code marks and permalink signs are left out.
QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "\u00a0": " ", "`": "", "¶": ""})
EDGES = " \t\n\"'`*“”‘’.,;:…"

_NOUNS = (
    "document|documentation|passage|text|article|section|page|chapter|paragraph|excerpt|snippet|context|content|"
    "author|writer|table|figure|list|example|sentence|statement|quote|code|output|manual|guide"
)
_THINGS = (
    "function|method|class|module|option|parameter|argument|command|file|setting|variable|attribute|package|tool|"
    "program|feature|system|project|value|field|object|type|script|process|event|person|company|film|book|rule|policy"
)
POINTING = re.compile(
    rf"\b(?:this|these|that|those|the given|the provided|the following|the above|the described|the mentioned|"
    rf"the specified|the first|the second|both) (?:{_NOUNS}|{_THINGS})s?\b"
    rf"|\b(?:according to|based on|in|from|by|of) (?:the|this|our) (?:{_NOUNS})s?\b(?! (?:of|for|in|on)\b)"
    rf"|\b(?:mentioned|described|listed|shown|given|stated|discussed|provided|explained|referred to) "
    rf"(?:above|below|here|earlier|previously|in the (?:{_NOUNS})s?)\b"
    rf"|\bthe (?:passage|text|excerpt|snippet|author|above|following|context)s?\b"
    rf"|\b(?:above|below|herein|aforementioned|passage [12ab])\b",
    re.IGNORECASE,
)
PRONOUN = re.compile(r"\b(?:it|its|itself|they|them|their|he|she|him|his|her|this|these|those)\b", re.IGNORECASE)
OPEN = re.compile(
    r"(?:^|, )(?:why|how (?!many|much|long|old|often|far|large|big|deep|fast|high|wide|tall|soon|are \w+ called)|"
    r"what (?:is|are|was|were) the (?:main |primary |key )?(?:purpose|importance|role|reason|difference|benefit|"
    r"advantage|significance|impact|effect|goal|criterion|criteria|relationship|consequence|motivation|intent)s?\b|"
    r"what (?:happens|can happen|will happen|should|could|might|if)\b|"
    r"(?:what|which) (?:does|do|did) [^?]{1,80} (?:say|specify|mention|state|describe|explain|mean|suggest|imply)\b)",
    re.IGNORECASE,
)
UNKNOWN = re.compile(
    r"\b(?:unknown|not (?:stated|mentioned|specified|given|provided|known|available)|none|n/a|no answer|yes|no)\b"
)


def quote_in_passage(candidate: Candidate, _: Vocabulary) -> bool:
    """Every quote stands in its passage."""
    return bool(candidate.evidence) and all(
        each.quote.strip() and fold(each.quote) in fold(each.passage.contents) for each in candidate.evidence
    )


def answer_in_evidence(candidate: Candidate, _: Vocabulary) -> bool:
    """The answer is short, and stands in a quote as whole words."""
    answer = candidate.answer
    if not comparable(answer) or len(words(answer)) > LONGEST_ANSWER or UNKNOWN.fullmatch(answer.strip(EDGES).lower()):
        return False
    return any(covers(each.quote, answer) for each in candidate.evidence)


def answer_is_phrase(candidate: Candidate, _: Vocabulary) -> bool:
    """The answer is a phrase: not a clause such as "it is important", and not a placeholder such as <mode>."""
    answer = candidate.answer.strip()
    said = answer.lower().split()
    clause = len(said) > 3 and any(word in CLAUSE_VERBS for word in said)
    return bool(said) and said[0] not in CLAUSE_STARTS and not clause and not (answer[0] == "<" and answer[-1] == ">")


def keeps_to_evidence(candidate: Candidate, _: Vocabulary) -> bool:
    """Most words of the question stand in the titles, the quotes or shortly before them: nothing was made up."""
    asked = [word for word in set(content_words(candidate.question)) if word not in GENERIC]
    text = " ".join(f"{each.passage.title} {_surroundings(each)}" for each in candidate.evidence)
    # Compared by their beginnings: "raised" stands for "raise".
    known = {word[:PREFIX] for word in content_words(text)}
    found = sum(word[:PREFIX] in known for word in asked)
    return found >= KEPT_WORDS * len(asked)


def _surroundings(evidence: Evidence) -> str:
    """Return a quote with the sentences before it, which may name what it is about."""
    found, quote = text_sentences(evidence.passage.text), fold(evidence.quote)
    places = [place for place, each in enumerate(found) if quote in fold(each) or fold(each) in quote]
    start = max(0, places[0] - SENTENCES_BEFORE) if places else 0
    return " ".join([*found[start : places[0] + 1], evidence.quote]) if places else evidence.passage.text


def answer_not_in_question(candidate: Candidate, _: Vocabulary) -> bool:
    """The question contains neither the answer nor all of its words."""
    question = candidate.question
    asked = set(content_words(question))
    for answer in candidate.answers:
        said = [word for word in content_words(answer) if word not in GENERIC]
        if covers(question, answer) or (said and asked.issuperset(said)):
            return False
    return True


def names_subject(candidate: Candidate, vocabulary: Vocabulary) -> bool:
    """The question names what it is about: no "this document", no pronoun without antecedent, a specific word."""
    question = candidate.question.strip()
    if POINTING.search(question):
        return False
    specific = vocabulary.specific_words(question)
    if not specific:
        return False
    pronoun = PRONOUN.search(question)
    return pronoun is None or question.find(specific[0]) < pronoun.start()


def is_closed(candidate: Candidate, _: Vocabulary) -> bool:
    """The question asks for a fact, not for a purpose, a reason or a manner, which few words cannot answer."""
    return OPEN.search(candidate.question) is None


def is_question(candidate: Candidate, _: Vocabulary) -> bool:
    """The question is one sentence of reasonable length that ends with a question mark."""
    question = candidate.question.strip()
    count = len(words(question))
    return question.endswith("?") and question.count("?") == 1 and 4 <= count <= 60 and "\n" not in question


# In the order in which they are applied; the names are those of the report.
FILTERS: dict[str, Callable[[Candidate, Vocabulary], bool]] = {
    "not a question": is_question,
    "open question": is_closed,
    "quote not in passage": quote_in_passage,
    "answer not in evidence": answer_in_evidence,
    "answer not a phrase": answer_is_phrase,
    "answer in question": answer_not_in_question,
    "words not in evidence": keeps_to_evidence,
    "subject not named": names_subject,
}


def failed_filter(candidate: Candidate, vocabulary: Vocabulary) -> str | None:
    """Return the name of the first filter that a candidate fails, or None."""
    return next((name for name, passes in FILTERS.items() if not passes(candidate, vocabulary)), None)


@dataclass(slots=True)
class NearDuplicates:
    """Accepts candidates whose questions differ: in words, or in more than a few words if the answer is the same.

    `excluded` are the keys of questions that must not be asked, such as those of a test set.
    """

    excluded: frozenset[str] = frozenset()
    _questions: set[frozenset[str]] = field(default_factory=set)
    _answers: dict[str, list[frozenset[str]]] = field(default_factory=lambda: defaultdict(list))

    def accept(self, question: str, answers: Sequence[str]) -> bool:
        """Return False for a near duplicate of an accepted question; otherwise remember the question."""
        asked = frozenset(content_words(question))
        key = comparable(answers[0])
        similar = any(_is_same(asked, other) for other in self._answers[key])
        if asked in self._questions or similar or question_key(question) in self.excluded:
            return False
        self._questions.add(asked)
        self._answers[key].append(asked)
        return True


def _is_same(asked: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two questions with one answer ask the same; questions about two identifiers do not."""
    if any(map(is_code, asked - other)) and any(map(is_code, other - asked)):
        return False
    return overlap(asked, other) >= SAME_ANSWER


def fold(text: str) -> str:
    """Normalise white space, case and typographic signs, for comparing quotes."""
    return SPACES.sub(" ", text.translate(QUOTES)).strip().lower()


def locate_quote(quote: str, text: str) -> str | None:
    """Return the part of a text that a quote repeats: verbatim, or a sentence with almost the same words."""
    wanted = fold(quote.strip(EDGES))
    if not wanted:
        return None
    if wanted in fold(text):
        return quote.strip(EDGES)
    said = normalise(quote).split()
    best = max(text_sentences(text), key=lambda each: overlap(normalise(each).split(), said), default="")
    return best if best and overlap(normalise(best).split(), said) >= NEAR_QUOTE else None


def text_sentences(text: str) -> list[str]:
    """Split a text of one paragraph per line into sentences."""
    return [sentence.strip() for line in text.splitlines() if line.strip() for sentence in sentences(line.strip())]


def covers(text: str, answer: str) -> bool:
    """Whether a text contains an answer as whole words; an answer written like code must match sign by sign."""
    if not answer.strip():
        return False
    if _contains(fold(text), fold(answer)):
        return True
    return not is_code(answer) and bool(normalise(answer)) and bool(cover_em(text, [answer]))


def _contains(text: str, wanted: str) -> bool:
    """Whether a text contains a string that is not part of a longer word there."""
    start = text.find(wanted)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(wanted) : start + len(wanted) + 1]
        if not (_joins(before, wanted[0]) or _joins(wanted[-1], after)):
            return True
        start = text.find(wanted, start + 1)
    return False


def _joins(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word; "" is the edge of the text."""
    return bool(left and right) and (left.isalnum() or left in "_-") and (right.isalnum() or right in "_+#")
