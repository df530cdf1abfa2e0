"""What is said of films, songs, albums and books: who made them, when, and what they are of."""

import re
from collections.abc import Iterator

from sleuth.synthesis.cloze import dates
from sleuth.synthesis.cloze.dates import DAY
from sleuth.synthesis.cloze.facts import NAME, Fact, Facts, Relation, one_name, predicates
from sleuth.synthesis.cloze.lexicon import unbracketed
from sleuth.synthesis.cloze.nations import ADJECTIVE, NATIONS, nation
from sleuth.synthesis.cloze.topic import Topic

BY = (
    rf"by (?:the )?(?:{ADJECTIVE}(?:[- ]{ADJECTIVE})? )?(?:(?!and |starring |the )[a-z/-]+(?: and)? ){{0,5}}?"
    rf"(?P<name>(?:The )?{NAME})"
)
# The verb, with others of the same maker before and behind it: written, directed and produced by.
WITH = r"(?:(?:,|,? and) (?:co-)?[a-z]+ed)*(?:(?:,|,? and) (?:written|edited))?"
DONE = {
    Relation.DIRECTOR: re.compile(rf"\b(?:directed|co-directed){WITH} {BY}"),
    Relation.WRITER: re.compile(rf"\bwritten{WITH} {BY}"),
    Relation.COMPOSER: re.compile(rf"\bcomposed{WITH} {BY}"),
    Relation.PRODUCER: re.compile(rf"\bproduced{WITH} {BY}"),
    Relation.CREATOR: re.compile(rf"\bcreated{WITH} {BY}"),
    Relation.PERFORMER: re.compile(rf"\b(?:recorded|performed|sung){WITH} {BY}"),
    Relation.PUBLISHER: re.compile(rf"\bpublished {BY}"),
}
MUSIC = frozenset({"song", "single", "album", "EP", "mixtape"})
BOOKS = frozenset({"novel", "novella", "book", "poem", "story", "play", "memoir", "autobiography"})
OWN_BY = {noun: re.compile(rf"\b{noun} (?:written )?{BY}") for noun in MUSIC | BOOKS}
ELSEWHERE = re.compile(
    r"\b(?:based on|remake|sequel|adapt\w+|version|prequel|parody|cover of|inspired|spin-off|soundtrack|novel|play|"
    r"book|series of|which|whose|that|from the film|episode|score|songs?|music|lyrics|screenplay|script|edited)\b"
)
YEAR = re.compile(r"^(?:an? |the )?(?:upcoming |lost )?(?P<when>1[89]\d{2}|20[0-2]\d) ")
RELEASED = re.compile(
    rf"\b(?:released|published|premiered)(?: [a-z]+ly)?(?: by [^,.]{{3,40}}?| through [^,.]{{3,40}}?| worldwide)?,? "
    rf"(?:on (?P<day>{DAY})|in (?:\w+ )?(?P<when>1[5-9]\d{{2}}|20[0-2]\d)(?![\w–-]))"
)
LABEL = re.compile(
    rf"\b(?:released|issued)\b[^.]{{0,60}}? (?:by|on|through|via|under) (?:the )?(?:label )?"
    rf"(?P<name>{NAME.replace('*', '{0,3}')} (?:Records|Recordings|Music|Entertainment))\b"
)
ALBUM = re.compile(
    r"\b(?:from|for|off|on) (?:the|his|her|their|its) (?:[\w’'-]+ ){0,5}?(?:album|EP|mixtape),? "
    r'(?:entitled |titled |called )?"(?P<name>[^"]{2,50}?),?"'
)
GENRES = frozenset(
    """
    comedy drama horror thriller western action adventure documentary fantasy crime romance romantic musical war
    mystery science fiction rock pop folk jazz blues country metal punk electronic biographical psychological
    historical superhero sports noir soul reggae
    """.split()  # noqa: SIM905 - read as lines
)


def work_facts(topic: Topic) -> Facts:
    """The facts of a passage on a work."""
    facts: Facts = {}
    for relation, fact in (*_opening(topic), *_told(topic)):
        facts.setdefault(relation, fact)
    if facts.get(Relation.AUTHOR):
        facts.pop(Relation.WRITER, None)
    return facts


def _opening(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    opening, defined = unbracketed(topic.opening), topic.defined
    found = re.search(r"\b(?:is|was|are|were) (?=(?:an?|the|one of) )", opening)
    if found is None or defined is None:
        return
    rest = opening[found.end() :]
    year = YEAR.match(rest)
    if year:
        yield Relation.RELEASED, Fact(year["when"])
    belongs = nation(defined.phrase)
    if belongs:
        yield Relation.NATIONALITY, Fact(belongs, NATIONS[belongs])
    genre = " ".join(word for word in defined.phrase.split()[:-1] if word in GENRES)
    if genre and genre in defined.phrase:
        yield Relation.GENRE, Fact(genre, (f"{genre} {defined.noun}",))
    yield from _makers(rest, defined.noun)
    yield from _release(rest, rest.find(defined.noun))


def _makers(rest: str, noun: str) -> Iterator[tuple[Relation, Fact]]:
    """Who made it, by the sentence that defines it."""
    for relation, pattern in DONE.items():
        found = pattern.search(rest)
        name = one_name(rest, found) if found and not _of_another(rest[: found.start()], noun) else None
        if name:
            yield relation, Fact(name)
    own = OWN_BY.get(noun)
    found = own.search(rest) if own else None
    name = one_name(rest, found) if found and not _of_another(rest[: found.start()], noun) else None
    if name:
        yield (Relation.PERFORMER if noun in MUSIC else Relation.AUTHOR), Fact(name)


def _of_another(before: str, noun: str) -> bool:
    """Whether the words before a maker turn to another work than the one that is defined."""
    return bool(ELSEWHERE.search(before.partition(noun)[2]))


def _told(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    for rest in predicates(topic):
        if re.match(r"^ (?:was|is|were) (?!an? |the |based)", rest):
            for relation, pattern in DONE.items():
                found = pattern.search(rest)
                name = one_name(rest, found) if found and not ELSEWHERE.search(rest[: found.start()]) else None
                if name:
                    yield relation, Fact(name)
            if re.match(r"^ (?:was|were) (?:first |originally |also )?(?:released|published|premiered)", rest):
                yield from _release(rest)
        album = ALBUM.search(rest) if topic.defined and topic.defined.noun in ("song", "single") else None
        if album:
            yield Relation.ALBUM, Fact(album["name"])


def _release(rest: str, begin: int = 0) -> Iterator[tuple[Relation, Fact]]:
    """When it came out and with whom; what stands before `begin` says what it is."""
    found = RELEASED.search(rest)
    if found and not ELSEWHERE.search(rest, begin + 1, found.start()):
        when = found["day"] or found["when"]
        yield Relation.RELEASED, Fact(when, dates.aliases(when))
    label = LABEL.search(rest)
    if label:
        yield Relation.LABEL, Fact(label["name"])
