"""Single-hop questions, derived by rules from one passage."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from sleuth.records import Passage
from sleuth.synthesis.cloze.english import (
    AGENT_NOUN_PHRASES,
    PAST_TO_BASE,
    PRESENT_TO_BASE,
    Kind,
    active_past,
    do_support,
)
from sleuth.synthesis.cloze.facts import Subject, extract_subject
from sleuth.synthesis.cloze.grammar import (
    COPULAS,
    STRANDED,
    SUBORDINATION,
    Clause,
    Draft,
    Form,
    capitalize,
    clause_of,
    contains_words,
    describe_answer,
    is_valid,
    normalize,
    punctuate,
    question_words,
)
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.relations import TEMPLATES, question_templates
from sleuth.synthesis.cloze.spans import PREPOSITIONS, Span, find_spans, leading_name
from sleuth.synthesis.cloze.topic import Statement, Topic, parse_topic

# Sampling weight of each form among the drafts of a passage.
WEIGHTS = {Form.FRONTED: 5.0, Form.SUBJECT: 5.0, Form.DEFINITION: 4.0, Form.FACT: 3.0, Form.IN_SITU: 2.0}
QUALIFYING_NOUNS = frozenset(
    {"film", "song", "album", "novel", "book", "single", "magazine", "band", "river", "opera", "play", "sitcom"}
)
PERFECT = re.compile(r"^ been ")
INDEFINITE_COMPLEMENT = re.compile(
    r"^ (?:an?|one|among|not|currently|also|often|sometimes|generally|usually|mostly|primarily) "
)
TRANSITIVE_VERBS = frozenset(
    """
    raised educated based directed produced published located created released named set held built made founded found
    established recorded elected appointed developed designed used described considered included required provided
    """.split()  # noqa: SIM905 - read as lines
)
AFTER_STRANDED = re.compile(r"^ (?:in|on|at|of|to|from|by|for|with|as|and|or)\b")
OTHER_YEAR = re.compile(r"\b\d{4}\b")
MAX_WORDS_BEFORE_PLACE = 5
STRANDED_FOR_THINGS = frozenset({"by", "as", "after", "for"})
INCOMPLETE = re.compile(r" (?:and|or|the|an?)$| and again\b")
# Maximum number of words before a stranded preposition.
MAX_WORDS_STRANDED = {
    "of": 4, "by": 7, "for": 7, "with": 6, "to": 5, "from": 5, "as": 5, "about": 5, "near": 3, "under": 4,
}  # fmt: skip
SUBJECT_VERBS = frozenset({"is", "was", "are", "were", "has", "had", "won", "wrote", "became"})
LAST_WORD = re.compile(r"(?<![\w-])[\w-]++$")
NOT_BEFORE_PEOPLE = frozenset({"as", "during", "in", "on", "at", "into", "through"})
DANGLING = re.compile(r"^[^,]*, (?:which|who|whose|where) [^,]*$|\bbetween [^,]*$")
# Questions ask for a thing of unknown kind only if one of these words precedes it.
NAMING_WORDS = frozenset({"as", "called", "named", "by"})
BEFORE_NUMBERS = frozenset(
    {"is", "was", "were", "are", "become", "include", "including", "has", "had", "when", "where"}
)
MADE_BY = re.compile(
    r"^ (?:is|was|are|were) (?:an?|the) (?P<phrase>[^,\"]*?) (?:(?P<other>\w+),? and )?(?P<done>\w+) by$"
)
DONE_AT = re.compile(
    r"^ (?P<copula>is|was|are|were) (?:an?|the) (?P<phrase>[^,\"]*?) (?P<done>\w+) (?P<preposition>in|on|at)$"
)
MODIFIER = re.compile(r"\b(?:of|from|about|on|in|with|for|and|at|who|that|which|to)\b")
STARRING = re.compile(r"\bstarring ([^.;]+)$")
NAME_SEPARATOR = re.compile(r", and |, | and ")
FULL_NAME = re.compile(r"^[A-Z][\w.’'-]+(?: [A-Z][\w.’'-]*){1,3}$")
MAX_STARS = 3
STATE_VERBS = frozenset({"located", "situated", "based", "headquartered", "set"})
BY_NOUN = {
    **dict.fromkeys(("album", "song", "single", "EP", "mixtape"), ("recorded", "the performer of")),
    **dict.fromkeys(("novel", "novella", "book", "poem", "story", "play"), ("wrote", "the author of")),
    **dict.fromkeys(("painting",), ("painted", "the painter of")),
    **dict.fromkeys(("opera", "symphony", "ballet"), ("composed", "the composer of")),
}


@dataclass(frozen=True, slots=True)
class Page:
    """An analysed passage: its normalized text, its subject, and all drafts about it.

    `ambiguous` tells whether other pages of the corpus have the same base title.
    """

    id: str
    words: str
    subject: Subject
    drafts: tuple[Draft, ...]
    ambiguous: bool

    @property
    def title(self) -> str:
        return self.subject.topic.title

    @property
    def identifiable(self) -> bool:
        """Whether the name used in questions identifies the topic."""
        return not self.ambiguous or self.subject.topic.name != self.title


def analyze(passage: Passage, lexicon: Lexicon) -> Page | None:
    """Analyse a passage; None if no question can be asked about it."""
    topic = parse_topic(passage, lexicon)
    if topic is None:
        return None
    subject, words = extract_subject(topic, lexicon), normalize(passage.contents)
    drafts = tuple(
        draft
        for draft in _drafts(subject, lexicon)
        if is_valid(draft) and contains_words(words, normalize(draft.answer))
    )
    return Page(passage.id, words, subject, drafts, topic.title in lexicon.ambiguous) if drafts else None


def shuffle_by_weight(drafts: Sequence[Draft], rng: Random) -> list[Draft]:
    """Return the drafts in random order, weighted by form."""
    counts = Counter(draft.form for draft in drafts)
    keys = [rng.random() ** (counts[draft.form] / WEIGHTS[draft.form]) for draft in drafts]
    return [draft for _, draft in sorted(zip(keys, drafts, strict=True), key=lambda pair: -pair[0])]


def choose_wording(draft: Draft, subject: Subject, rng: Random) -> str:
    """Choose a random wording of a draft."""
    if not draft.templates:
        return draft.text
    return capitalize(rng.choice(draft.templates).replace("{x}", rng.choice(topic_names(subject.topic))))


def topic_names(topic: Topic) -> tuple[str, ...]:
    """Return the names for a topic in questions: Ed Wood, the film Ed Wood, film Ed Wood."""
    if topic.kind is Kind.PERSON or topic.noun not in QUALIFYING_NOUNS or topic.name != topic.title:
        return (topic.name,)
    return (topic.name, f"the {topic.noun} {topic.name}", f"{topic.noun} {topic.name}")


def _drafts(subject: Subject, lexicon: Lexicon) -> Iterator[Draft]:
    topic = subject.topic
    yield from _fact_drafts(subject)
    yield from _cast_drafts(topic)
    for statement in topic.statements:
        yield from _subject_drafts(statement, topic.title, lexicon)
        title_start = statement.text.find(topic.title)
        for span in find_spans(statement.text, statement.subject_end or 1, lexicon):
            if title_start <= span.start < title_start + len(topic.title):
                continue  # part of the title itself: Licence to Kill
            clause = clause_of(statement, span)
            yield from _definition_drafts(clause)
            yield from _fronted_drafts(clause)
            for draft in _in_situ_drafts(clause, clause.name or topic.name):
                if clause.name or topic.title in draft.text:  # otherwise the question does not name its topic
                    yield draft


def _draft(clause: Clause, form: Form, name: str, text: str) -> Draft:
    span = clause.span
    return Draft(punctuate(text), span.answer, span.kind, form, name, span.aliases, describe_answer(clause))


def _fact_drafts(subject: Subject) -> Iterator[Draft]:
    topic = subject.topic
    for relation, fact in subject.facts.items():
        template = TEMPLATES[relation]
        texts = question_templates(relation, fact.value, topic.noun or "thing", topic.kind)
        kind = Kind.YEAR if template.kind is Kind.DATE and fact.value.isdigit() else template.kind
        text = texts[0].replace("{x}", topic.name)
        descriptions = template.descriptions
        yield Draft(text, fact.value, kind, Form.FACT, topic.name, fact.aliases, descriptions, texts, relation)


def _cast_drafts(topic: Topic) -> Iterator[Draft]:
    found = STARRING.search(topic.opening.rstrip("."))
    if found is None or topic.kind is not Kind.WORK:
        return
    parts = NAME_SEPARATOR.split(found[1])
    names = [name for name in parts if FULL_NAME.match(name)]
    if len(names) < 2:
        return
    text = punctuate(f"who stars in {topic.name}")
    yield Draft(text, names[0], Kind.PERSON, Form.DEFINITION, topic.name, tuple(names[1:]))
    if len(names) > MAX_STARS or len(names) < len(parts):
        return  # the other names would be correct answers too
    for name in names:
        others = " and ".join(each for each in names if each != name)
        descriptions = (f"the actor who stars alongside {others} in {{x}}", f"the star of {{x}} beside {others}")
        text = punctuate(f"who stars alongside {others} in {topic.name}")
        yield Draft(text, name, Kind.PERSON, Form.DEFINITION, topic.name, (), descriptions)


def _subject_drafts(statement: Statement, title: str, lexicon: Lexicon) -> Iterator[Draft]:
    """Ask for the name at the start of a sentence: Who directed Ed Wood?"""
    span = leading_name(statement.text, lexicon) if statement.subject_end is None else None
    if span is None:
        return
    rest = statement.text[span.end :]
    verb = rest.split()[0]
    if (verb in SUBJECT_VERBS or verb in PAST_TO_BASE) and title in rest and not re.search(r"[,\"] ", rest[:60]):
        text = punctuate(f"{question_words(span, objective=False)}{rest.partition(', ')[0]}")
        yield Draft(text, span.answer, span.kind, Form.SUBJECT, title, span.aliases)


def _definition_drafts(clause: Clause) -> Iterator[Draft]:
    """Ask who made the defined topic, and when and where: Who directed Ed Wood?"""
    span, name = clause.span, clause.name
    if name is None or span.in_list:
        return
    made, done = MADE_BY.match(clause.before), DONE_AT.match(clause.before)
    if made and not MODIFIER.search(made["phrase"]) and span.kind in (Kind.PERSON, Kind.GROUP, Kind.THING):
        yield from _maker_drafts(made["done"], made["other"], span, name)
    if done and (done["done"] in STATE_VERBS or (not MODIFIER.search(done["phrase"]) and active_past(done["done"]))):
        yield from _time_and_place_drafts(done, span, name)


def _maker_drafts(done: str, other: str | None, span: Span, name: str) -> Iterator[Draft]:
    who = f"which {span.noun}" if span.noun else "who"
    kind = Kind.PERSON if span.kind is Kind.THING and done in AGENT_NOUN_PHRASES else span.kind
    if done in BY_NOUN:
        verb, role = BY_NOUN[done]
    else:
        past, other_past = active_past(done), active_past(other or "")
        if past is None:
            return
        verb, role = (f"{other_past} and {past}" if other_past else past), AGENT_NOUN_PHRASES.get(done, "")
    descriptions = (f"{role} {{x}}",) if role else ()
    texts = [f"{who} {verb} {name}"] * 2 + ([f"who is {role} {name}"] if role and not span.noun else [])
    for text in texts:
        yield Draft(punctuate(text), span.answer, kind, Form.DEFINITION, name, span.aliases, descriptions)


def _time_and_place_drafts(found: re.Match[str], span: Span, name: str) -> Iterator[Draft]:
    done = found["done"]
    copula = "is" if done in STATE_VERBS and found["copula"] != "was" else "was"
    fronts: Sequence[str] = ()
    if span.kind is Kind.YEAR:
        fronts = ("In what year", "When")
    elif span.kind is Kind.DATE:
        fronts = ("When",)
    elif span.kind in (Kind.PLACE, Kind.THING) and found["preposition"] != "on":
        fronts = ("Where", f"In which {span.noun}") if span.noun and span.kind is Kind.PLACE else ("Where",)
    descriptions = ("the place where {x} is located",) if done in STATE_VERBS - {"set", "based"} else ()
    kind = Kind.PLACE if span.kind is Kind.THING else span.kind
    for front in fronts:
        text = punctuate(f"{front} {copula} {name} {done}")
        yield Draft(text, span.answer, kind, Form.DEFINITION, name, span.aliases, descriptions)


def _fronted_drafts(clause: Clause) -> Iterator[Draft]:
    """Invert subject and verb: Where was Ada born? What did Ada write?"""
    span, predicate = clause.span, clause.predicate()
    if predicate is None or clause.name is None or span.in_list:
        return
    verb, body = predicate
    support, length = do_support(verb), len(body.split())
    is_passive = verb in TRANSITIVE_VERBS and length > 0 and body.split()[0] in PREPOSITIONS  # Bono, raised in Dublin
    if (verb in COPULAS and not INDEFINITE_COMPLEMENT.match(f"{body} ")) or (
        verb in ("has", "had") and PERFECT.match(body)
    ):
        inverted = f"{verb} {clause.name}{body}"
    elif support is not None and verb not in COPULAS and not is_passive:
        inverted = f"{support[0]} {clause.name} {support[1]}{body}"
    else:
        return
    if SUBORDINATION.search(f"{body} ") or INCOMPLETE.search(clause.before):
        return
    if span.kind in (Kind.YEAR, Kind.DATE) and (verb == "is" or OTHER_YEAR.search(body)):
        return
    if span.kind is Kind.PLACE and (length > MAX_WORDS_BEFORE_PLACE or (verb in COPULAS and body.startswith(" the "))):
        return
    if length > MAX_WORDS_STRANDED.get(span.preposition or "", 12):
        return
    for front, rest in _fronts(span, inverted, direct=not body and verb not in COPULAS):
        stranded = rest == inverted and bool(body) and bool(AFTER_STRANDED.match(clause.after))
        tail = "" if stranded or (span.kind is Kind.PLACE and rest != inverted) else clause.after
        yield _draft(clause, Form.FRONTED, clause.name, f"{front} {rest}{tail}")


def _fronts(span: Span, inverted: str, direct: bool) -> Iterator[tuple[str, str]]:
    """Yield fronted question words for a span, each with the inverted clause that follows."""
    preposition = span.preposition
    dropped = inverted.removesuffix(f" {preposition}")
    asking = question_words(span, objective=False)
    match span.kind:
        case Kind.YEAR:
            yield from ((front, dropped) for front in ("In what year", "When", "In which year"))
        case Kind.DATE if preposition in ("on", "in"):
            yield from ((front, dropped) for front in ("When", "On what date" if preposition == "on" else "When"))
        case Kind.PLACE if preposition in ("in", "at"):
            yield "Where", dropped
            if span.noun:
                yield f"{preposition} which {span.noun}", dropped
        case Kind.DATE:
            return
        case Kind.PLACE if not span.noun:
            return
        case Kind.NUMBER | Kind.AMOUNT:
            if direct or preposition in PREPOSITIONS:
                yield asking, inverted
        case Kind.THING if not span.noun and not direct and preposition not in STRANDED_FOR_THINGS:
            return
        case _ if direct or (preposition in STRANDED and inverted.endswith(f" {preposition}")):
            yield asking, inverted


def _in_situ_drafts(clause: Clause, name: str) -> Iterator[Draft]:
    """Replace the span with question words: Ed Wood is a 1994 film directed by whom?"""
    span, start = clause.span, f"{clause.name or ''}{clause.before}"
    found = LAST_WORD.search(start)
    last = found[0].lower() if found else ""
    if (
        span.in_list
        or (span.kind is Kind.THING and not span.noun and last not in NAMING_WORDS)
        or (clause.name is None and "," in start)
        or not _may_precede_question_words(last, span.kind)
        or " " not in start
        or DANGLING.search(start)
        or "respectively" in clause.after
    ):
        return
    without = start.removesuffix(f" {last}")
    wordings: list[tuple[str, str]]
    match span.kind:
        case Kind.YEAR:
            wordings = [(start, "what year"), (start, "which year")]
        case Kind.DATE if last in ("on", "in"):
            wordings = [(start, "what date") if last == "on" else (without, "when"), (without, "when")]
        case Kind.DATE:
            wordings = []
        case Kind.PLACE if last in ("in", "at") and not span.noun:
            wordings = [(start, "what place") if clause.after else (without, "where")]
        case Kind.PLACE if last == "from" and not span.noun:
            wordings = [(start, "where")]
        case _:
            wordings = [(start, question_words(span, objective=last in PREPOSITIONS))]
    for head, asking in wordings:
        yield _draft(clause, Form.IN_SITU, name, f"{head} {asking}{clause.after}")


def _may_precede_question_words(word: str, kind: Kind) -> bool:
    if kind is Kind.PERSON and word in NOT_BEFORE_PEOPLE:
        return False
    if word in PREPOSITIONS or word in PAST_TO_BASE or word in PRESENT_TO_BASE:
        return True
    return word in BEFORE_NUMBERS and kind in (Kind.NUMBER, Kind.AMOUNT)
