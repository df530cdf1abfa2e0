"""Question grammar: clauses around an answer span, question words, descriptions of the answer, and question drafts."""

import re
import string
from dataclasses import dataclass, replace
from enum import StrEnum

from sleuth.synthesis.cloze.english import AGENT_NOUN_PHRASES, IRREGULAR_PAST, PAST_TO_BASE, PRESENT_TO_BASE, Kind
from sleuth.synthesis.cloze.relations import Relation
from sleuth.synthesis.cloze.spans import Span
from sleuth.synthesis.cloze.topic import Statement

QUESTION_LENGTH = range(4, 33)
PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = frozenset({"a", "an", "the"})
MAX_ANSWER_CHARS = 70
MALFORMED = re.compile(
    r"\b(?:and|or|the|an?|both|No|St|Dr|Mr)\?$|[;:\[\]{}()]|\b[Tt]he of\b|\s,|--|^\W*$|"
    r"\b(located|born|based|from|died|is|was) \1\b|"
    r"\b(?:the|a|an|his|her|its|their|which \w+) (?:who|what|which|whom|how|when|where)\b"
)
FUNCTION_WORDS = frozenset(
    """
    a an the of in on at by for from to with and or is was are were be been did does do has have had who whom whose
    which what when where how many much year date it its his her he she they their that this as into
    """.split()  # noqa: SIM905 - read as lines
)
CLAUSE_END = re.compile(
    r",(?!\d)|\s(?:and|but) (?:is|was|were|has|had|may|can|could|would|will|did|later|then|"
    r"also|the|he|she|it|they|at|in|for|by|with|to|from|on|as|"
    r"\w+ed|\w+ing|"
    + "|".join(IRREGULAR_PAST)
    + r")\b|\s(?:where|while|when|although|because|but|before|after which|who|which)\b| – |\. "
)
COORDINATED_VERB = re.compile(
    r",? and (?:later |then |also |subsequently |eventually |currently )?(?=([a-z]+) (?!by\b))"
)
BEFORE_PLACE = re.compile(
    r"\b(?:born|died|located|situated|raised|lived|lives|based|settled|buried|headquartered|held|resides|grew up|"
    r"stationed|stayed|interred|imprisoned|educated|filmed|shot|set|moved|founded)(?: on [\w ,]{6,18})? (?:in|at|to)$"
)
BEFORE_PERSON = re.compile(
    r"\b(?:directed|written|composed|produced|created|hosted|co-written|starring|married|painted|sung|portrayed|played|"
    r"novel|wife|husband|brother|sister|married to|"
    r"(?:son|daughter|father|mother|brother|sister|nephew|niece|grandson) of)(?: by)?$"
)
# The span is outside the main clause if one of these precedes it.
SUBORDINATION = re.compile(
    r"[,\"]| (?:who|which|that|where|when|while|whose|if|because|but|than|after|before|between|from|"
    r"and (?:its|his|her|the|their|he|she|it|was|is|has)) "
)
ADVERB = re.compile(r"^ (?:also|later|then|first|subsequently|eventually|originally|currently|previously|once) ")
STRANDED = frozenset(
    {"by", "for", "with", "from", "to", "of", "as", "after", "against", "under", "alongside", "about", "in", "on", "at"}
    | {"into", "over", "near"}
)
PREDICATE = re.compile(r"^ (?P<verb>[a-z]+)(?P<body>(?: .*)?)$")
COPULAS = frozenset({"is", "was", "are", "were"})
INDEFINITE = re.compile(r"^ (?:an?|one|among|not|often|sometimes|generally|usually|mostly|primarily) ")
NON_UNIQUE_VERBS = frozenset(
    {"stars", "starred", "features", "featured", "includes", "included", "borders", "bordered"}
)
MAX_WORDS_BEFORE, MAX_WORDS_AFTER = 5, 4  # maximum words of a description's clause before and after the answer
PASSIVE_OR_NEGATED = re.compile(r"(?:ed|written|known|made|sung|by)\b|\b(?:never|not)\b")
FIXED_DESCRIPTIONS = {
    ("born", "in"): "the place where {x} was born",
    ("buried", "in"): "the place where {x} is buried",
    ("located", "in"): "the place where {x} is located",
    ("headquartered", "in"): "the place where {x} is headquartered",
    ("married", None): "the person whom {x} married",
    ("attended", None): "the school that {x} attended",
    ("died", "in"): "the place where {x} died",
}


class Form(StrEnum):
    """How a question is formed from a passage."""

    FRONTED = "fronted"  # wh-movement: Where was Ada born?
    IN_SITU = "in situ"  # question words in place of the answer: Ed Wood was directed by whom?
    SUBJECT = "subject"  # the answer is the subject: Who directed Ed Wood?
    DEFINITION = "definition"  # from the opening sentence
    FACT = "fact"  # from the templates of a relation
    INTERSECTION = "intersection"  # two passages constrain the answer


@dataclass(frozen=True, slots=True)
class Draft:
    """A question about a passage; `name` is how it refers to the topic.

    `templates` are its wordings with {x} for the topic, if it has several. `descriptions` are noun phrases for the
    answer with {x} for the topic, used in bridge questions.
    """

    text: str
    answer: str
    kind: Kind
    form: Form
    name: str
    aliases: tuple[str, ...] = ()
    descriptions: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    relation: Relation | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """Distinct golden answers."""
        return tuple(dict.fromkeys((self.answer, *self.aliases)))


def is_valid(draft: Draft) -> bool:
    """Whether a draft is well-formed and specific, and does not contain its answer."""
    text = draft.text
    if MALFORMED.search(text) or text.count('"') % 2 or len(text.split()) not in QUESTION_LENGTH:
        return False
    if not 1 <= len(draft.answer) <= MAX_ANSWER_CHARS or not any(map(str.isalnum, draft.answer)):
        return False
    question = normalize(text)
    if any(contains_words(question, normalize(answer)) for answer in draft.answers):
        return False
    if contains_words(normalize(draft.answer), normalize(draft.name)):
        return False
    return len(set(question.split()) - FUNCTION_WORDS) >= 2


def normalize(text: str) -> str:
    """Normalize as exact match does: lower case, without punctuation and articles."""
    return " ".join(word for word in text.lower().translate(PUNCTUATION).split() if word not in ARTICLES)


def contains_words(text: str, words: str) -> bool:
    """Whether a normalized text contains normalized words."""
    return f" {words} " in f" {text} "


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def punctuate(text: str) -> str:
    """Add a capital letter and a question mark to a question."""
    return capitalize(" ".join(text.split()).rstrip(" ,.")) + "?"


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause split into its subject (if that is the topic), the text before the span, the span, and the rest."""

    name: str | None
    before: str
    span: Span
    after: str

    def predicate(self) -> tuple[str, str] | None:
        """Return the verb and the text between verb and span; None if the topic is not the subject."""
        found = PREDICATE.match(ADVERB.sub(" ", self.before)) if self.name else None
        return (found["verb"], found["body"]) if found else None


def clause_of(statement: Statement, span: Span) -> Clause:
    """Return the clause that contains a span, without earlier coordinated verbs and later clauses."""
    before, after = statement.text[: span.start], statement.text[span.end :]
    end = CLAUSE_END.search(after)
    after = after[: end.start()] if end else after
    name = None
    if statement.subject_end is not None:
        name, before = before[: statement.subject_end], before[statement.subject_end :]
        verbs = [
            found
            for found in COORDINATED_VERB.finditer(before)
            if found[1] in COPULAS or found[1] in ("has", "had") or found[1] in PAST_TO_BASE
        ]
        before = f" {before[verbs[-1].end() :]}" if verbs else before
    before = before.rstrip()
    if span.kind is Kind.THING and not span.noun:
        if BEFORE_PLACE.search(before):
            span = replace(span, kind=Kind.PLACE)
        elif BEFORE_PERSON.search(before):
            span = replace(span, kind=Kind.PERSON)
    return Clause(name, before, span, after)


def question_words(span: Span, objective: bool) -> str:
    """Return the question words for a span: which band, who, how many books."""
    match span.kind:
        case Kind.PERSON:
            return f"which {span.noun}" if span.noun else "whom" if objective else "who"
        case Kind.NUMBER:
            return f"how many {span.noun}"
        case Kind.AMOUNT:
            return "what percentage" if span.noun else "how much money"
        case Kind.YEAR:
            return "what year"
        case Kind.DATE:
            return "what date"
        case Kind.PLACE if not span.noun:
            return "what place"
        case _:
            return f"which {span.noun}" if span.noun else "whom" if span.preposition == "by" and objective else "what"


def describe_answer(clause: Clause) -> tuple[str, ...]:
    """Return noun phrases for the span, with {x} for the topic; empty if the clause is too long or ambiguous."""
    span, predicate = clause.span, clause.predicate()
    if predicate is None or span.in_list or span.kind in (Kind.YEAR, Kind.DATE, Kind.NUMBER, Kind.AMOUNT):
        return ()
    verb, body = predicate
    is_known = verb in COPULAS or verb in PAST_TO_BASE or verb in PRESENT_TO_BASE or verb in ("has", "had")
    if SUBORDINATION.search(f"{body} ") or verb in NON_UNIQUE_VERBS or not is_known:
        return ()
    words, preposition = body.split(), span.preposition if body else None
    participle = words[0] if words and verb in COPULAS else verb
    if preposition == "by" and verb in COPULAS and participle in AGENT_NOUN_PHRASES and len(words) == 2:
        return (f"{AGENT_NOUN_PHRASES[participle]} {{x}}",)
    if len(words) <= 2 and (participle, preposition) in FIXED_DESCRIPTIONS:
        return (FIXED_DESCRIPTIONS[participle, preposition],)
    is_long = len(clause.after.split()) > MAX_WORDS_AFTER or len(words) > MAX_WORDS_BEFORE
    if clause.after.startswith((" and", " or")) or is_long:
        return ()
    if verb in COPULAS and INDEFINITE.match(body) and PASSIVE_OR_NEGATED.search(body):
        return ()
    return _relative_clause(clause, verb, body, preposition)


def _relative_clause(clause: Clause, verb: str, body: str, preposition: str | None) -> tuple[str, ...]:
    """Turn the clause into a relative clause of the span's noun: the university that {x} studied at."""
    span, after = clause.span, clause.after
    if span.kind is Kind.PLACE and preposition in ("in", "at"):
        return (f"the {span.noun or 'place'} where {{x}} {verb}{body.removesuffix(f' {preposition}')}{after}",)
    direct = not body and verb not in COPULAS
    stranded = preposition in STRANDED and body.endswith(f" {preposition}")
    if not (direct or stranded) or not (span.noun or span.kind is Kind.PERSON):
        return ()
    head = f"the {span.noun} that" if span.noun else "the person whom"
    return (f"{head} {{x}} {verb}{body}{after}",)
