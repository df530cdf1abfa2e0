"""Words of a corpus: how many passages contain each, and which words of a question are specific to a subject."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sleuth.records import Passage


def word_set(table: str) -> frozenset[str]:
    """Return the words of a table that is written as lines."""
    return frozenset(table.split())


# Words with inner signs that stay together: git-fetch, os.path, --no-verify, /etc/passwd, C++, user_id.
WORD = re.compile(r"(?:--?)?[^\W_]\w*+(?:[.:/@+'’-]{1,2}\w++)*+(?:\+\+|\(\))?|/\w[\w./-]*+|_\w++")
RARE_SHARE = 0.01  # a word in at most this share of the passages is specific
UNCOMMON_SHARE = 0.03  # two such words are specific together
RARE_COUNT = 2
STOPWORDS = word_set(
    """
    a an the this that these those it its he she they them his her their we us our you your i me my one ones there here
    and or but nor so if then than as at by for from in into of off on onto out over per to up upon via with within
    without about above after against along among around before behind below between beyond during except inside like
    near since through throughout toward under until while because although though whether both either each every all
    any some no not only own same such very too also just more most other another many much few several less least
    is am are was were be been being do does did done doing have has had having can could may might must shall should
    will would ought need let
    what which who whom whose when where why how
    """
)
# Words of technical prose and of questions that name no subject, however rare they are in a corpus.
GENERIC = word_set(
    """
    name named names called term terms used use uses using user users value values default type types kind kinds number
    numbers list lists set sets get gets return returns returned returning result results purpose mean means meaning
    example examples describe describes described description defined define defines definition specify specifies
    specified represent represents provide provides provided given give gives allow allows allowed require requires
    required contain contains contained include includes included create creates created make makes made happen happens
    occur occurs function functions method methods class classes module modules option options parameter parameters
    argument arguments command commands file files setting settings section sections page pages document documents
    documentation text passage passages article chapter paragraph author information information's thing things way ways
    part parts first second third last next new old main possible available different following certain specific main
    case cases time times version versions system program programs work works working maximum minimum item items size
    length amount limit total person people place important correct current general common whole
    stand stands added deprecated
    """
)


def words(text: str) -> list[str]:
    """Split a text into words as written."""
    return [word.rstrip(".") for word in WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """Return the lower-case words of a text that are not stop words, with plurals reduced."""
    return [stem(word) for each in words(text) if (word := each.lower().replace("’", "'")) not in STOPWORDS]


def stem(word: str) -> str:
    """Remove a possessive or plural ending, so that wordings can be compared."""
    word = word.removesuffix("'s").removesuffix("()")
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def is_code(word: str) -> bool:
    """Whether a word is written like an identifier, an option, a path or an acronym."""
    inner = word.removesuffix("()")
    if inner != word or inner.startswith(("-", "/", "_")):
        return True
    if any(sign in inner for sign in "_/@+:") or (inner.isupper() and len(inner) > 1):
        return True
    letters = [character for character in inner if character.isalpha()]
    mixed = len(letters) < len(inner) and any(character.isdigit() for character in inner) and bool(letters)
    return mixed or "." in inner or any(character.isupper() for character in inner[1:])


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Passage counts of the words of a corpus."""

    passages: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_passages(cls, passages: Iterable[Passage]) -> "Vocabulary":
        counts: Counter[str] = Counter()
        total = 0
        for passage in passages:
            counts.update(set(content_words(passage.contents)))
            total += 1
        return cls(total, counts)

    def specific_words(self, question: str) -> list[str]:
        """Return the words of a question that name a particular subject, in order."""
        found: list[str] = []
        uncommon: list[str] = []
        for place, word in enumerate(words(question)):
            lower = stem(word.lower())
            if word.lower() in STOPWORDS or lower in GENERIC or word.lower() in GENERIC:
                continue
            count = self.counts[lower]
            share = count / max(1, self.passages)
            is_name = place > 0 and word[:1].isupper()
            # A word that the corpus does not have names nothing in it.
            if is_code(word) or is_name or 0 < count <= RARE_COUNT or 0 < share <= RARE_SHARE:
                found.append(word)
            elif 0 < share <= UNCOMMON_SHARE:
                uncommon.append(word)
        return found or (uncommon if len(uncommon) > 1 else [])


def overlap(first: Collection[str], second: Collection[str]) -> float:
    """Return the Jaccard similarity of two collections of words."""
    one, two = set(first), set(second)
    return len(one & two) / len(one | two) if one or two else 0.0
