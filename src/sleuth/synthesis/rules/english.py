"""English for the rules: verbs of documentation, their third person, and descriptions turned into predicates."""

import re

from sleuth.synthesis.vocabulary import word_set, words

# Verbs with which descriptions of functions, options and settings begin.
VERBS = word_set(
    """
    abort accept accumulate activate add adjust advance aggregate align allocate allow analyze append apply approve
    archive arrange ask assert assign associate attach attempt authenticate avoid begin bind block break build bypass
    cache calculate call cancel capture cast cause change check choose clean clear clone close collect combine commit
    compare compile complete compress compute configure confirm connect construct consume contain continue control
    convert copy count cover create cut deactivate deallocate decide declare decode decompress decrease decrypt define
    delete deliver deny depend derive describe deserialize destroy detach detect determine disable discard disconnect
    display distribute divide do download drop dump duplicate edit emit emulate enable encode encrypt end enforce ensure
    enter enumerate erase escape establish estimate evaluate examine exclude execute exit expand explain export expose
    extend extract fetch fill filter find finish flush follow force format forward free generate get give grant group
    guarantee handle hash help hide hold identify ignore implement import include increase increment index indicate
    inherit initialize insert inspect install instruct interpret introduce invoke issue iterate join jump keep kill
    label launch lead let limit link list listen load locate lock log look lower maintain make manage map mark mask
    match measure merge modify monitor mount move multiply name normalize notify obtain offer omit open order output
    overlay override overwrite own pack parse pass pause perform permit pick pin place point pop prepare preserve
    prevent print process produce prohibit prompt propagate protect provide prune publish pull push put query queue
    quit quote raise read rebase rebuild receive recommend record recreate recover redirect reduce refer refresh
    register reject release reload remove rename render repair repeat replace report represent request require
    reserve reset resize resolve respond restart restore restrict resume retrieve return reuse reverse revert review
    rewrite rotate round run save scan schedule search seek select send separate serialize serve set shift show shut
    shuffle sign simulate skip sleep sort specify split squash start state stop store stream strip submit substitute
    subtract supply support suppress suspend swap switch synchronize take tell terminate test throw toggle track
    transfer transform translate treat trigger trim truncate try turn unlock unpack unregister unset update upgrade
    upload use validate verify view wait walk warn wrap write yield
    """
)
AUXILIARIES = word_set("is are was were be has have had can could may might must shall should will would does do")
CLAUSES = word_set("that which who whose where when whether if because as")
FRAGMENT_NOUNS = word_set(
    "number name size path list maximum minimum length directory file format string amount location total value"
)
NAME_NOUNS = (
    "environment variable|configuration variable|configuration option|configuration parameter|command-line option|"
    "system call|data type|option|function|method|command|module|file|hook|setting|variable|parameter|flag|field|class|"
    "directory|package|tool|program|script|attribute|clause|statement|type|view|table|keyword|header|utility|exception|"
    "decorator|operator|argument|constant|property|macro|service|extension|index|role|protocol|format|library|server|"
    "process|object|signal|target|subcommand|catalog|team|department|committee|office|group|manager|system|form|portal"
)
PARENTHESES = re.compile(r"\s?\([^()]{0,200}\)")
END = re.compile(r"(?:;|:|\s--|\s—|\s–|,\s(?:e\.g\.|i\.e\.|for example|for instance|such as|see)\b|\s§).*+$", re.DOTALL)
UNCLEAR = re.compile(
    r"\b(?:this|these|those|above|below|following|here|former|latter|previous|previously|same|such|also|instead|"
    r"another|others?|otherwise|see|we|you|your|our|i|respectively|etc|example|note)\b",
    re.IGNORECASE,
)
RUN_ON = re.compile(r", (?:it|they|he|she|this|in which|but|so|however|please)\b")
DANGLING = word_set(
    """
    a an the and or of to in for with by from on at as which that case is are be if when while whereas since like than
    into via e i
    """
)
MIN_WORDS, MAX_WORDS = 4, 28
DETERMINERS = word_set("a an the its all any each every them it to about for from with whether if")
IRREGULAR = {"do": "does", "have": "has", "be": "is"}
BASES = {"does": "do", "has": "have"}


def third_person(verb: str) -> str:
    """Return the third person singular: copies, pushes, applies."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return f"{verb[:-1]}ies"
    return f"{verb}es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{verb}s"


def base_form(word: str) -> str | None:
    """Return the base of a known verb in the third person, or None."""
    if word in BASES:
        return BASES[word]
    for base in (word.removesuffix("s"), word.removesuffix("es"), f"{word.removesuffix('ies')}y"):
        if base != word and base in VERBS and third_person(base) == word:
            return base
    return None


def clean_predicate(text: str) -> str | None:
    """Cut asides and the end of a sentence; None if what is left is too short, too long or refers to other text."""
    text = END.sub("", PARENTHESES.sub("", text)).partition(". ")[0].strip(" .,;:!?\"'")
    count = len(text.split())
    if not MIN_WORDS <= count <= MAX_WORDS or UNCLEAR.search(text) or text.count('"') % 2 or "?" in text:
        return None
    if any(sign in text for sign in "()[]{}|=\\<>") or text.count("``") % 2 or RUN_ON.search(text):
        return None
    return None if text.rpartition(" ")[2].lower() in DANGLING else text


def predicate(description: str) -> str | None:
    """Turn the first sentence of a description into a predicate in the third person, or return None.

    "Show the changes." gives "shows the changes", "The name of the table." gives "is the name of the table".
    """
    text = clean_predicate(description)
    if text is None:
        return None
    first, _, rest = text.partition(" ")
    word = first.lower().rstrip(",")
    if not first[0].isupper() or word != first.lower() or (len(first) > 1 and not first[1:].islower()):
        return None
    if word in ("refer", "see", "note", "consult"):
        return None
    if base_form(word) is not None:
        return f"{word} {_conjugate_rest(rest, imperative=False)}"
    if word in ("a", "an", "the"):
        return f"is {word} {rest}" if _is_fragment(rest) else None
    if word in VERBS and not _starts_like_a_noun(word, rest):
        return f"{third_person(word)} {_conjugate_rest(rest, imperative=True)}"
    if word == "whether":
        return f"determines whether {rest}"
    if word in FRAGMENT_NOUNS and rest.startswith("of ") and _is_fragment(rest):
        return f"is the {word} {rest}"
    return None


def lower_first(text: str) -> str:
    """Lower the first letter, unless the first word is a name or an acronym."""
    first = text.partition(" ")[0]
    return text if any(character.isupper() for character in first[1:]) or first == "I" else text[:1].lower() + text[1:]


def _conjugate_rest(rest: str, *, imperative: bool) -> str:
    """Conjugate a second imperative: "compile x and return the result" gives "and returns the result"."""
    tokens = rest.split()
    for place, token in enumerate(tokens if imperative else ()):
        before = tokens[place - 1] if place else "and"
        after = tokens[place + 1] if place + 1 < len(tokens) else "the"
        joined = before in ("and", "or", "then") and (place == 1 or after in DETERMINERS)
        if joined and place > 0 and token in VERBS:
            tokens[place] = third_person(token)
    return " ".join(tokens)


def _is_fragment(text: str) -> bool:
    """Whether a noun phrase is not followed by a verb, except in a relative clause."""
    lowered = [word.lower() for word in words(text)]
    for place, word in enumerate(lowered):
        if word in CLAUSES or word == "to":
            return place > 0
        if word in AUXILIARIES:
            return False
        if (
            place > 0
            and base_form(word) is not None
            and lowered[place - 1] not in ("of", "the", "a", "and", "or", "for")
        ):
            return False
    return True


def _starts_like_a_noun(word: str, rest: str) -> bool:
    """Whether a word that is also a verb is a noun here: "List of files", "Set to true", "Format is"."""
    following = rest.partition(" ")[0].lower()
    return (
        following in AUXILIARIES
        or following in ("of", "for", "that", "which")
        or (word in ("set", "return", "use", "list", "default") and following in ("to", "of", "in"))
    )
