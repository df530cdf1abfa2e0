"""The words of comparisons: {a} and {b} are what is compared, {noun} what both are, {value} what both share."""

from sleuth.synthesis.cloze.facts import Relation

# Of two dates or numbers: what asks for the smaller, and what asks for the larger.
FEWER_OR_MORE: dict[Relation, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Relation.BORN: (
        ("Who was born first, {a} or {b}?", "Who was born earlier, {a} or {b}?", "Who is older, {a} or {b}?",
         "Who was born first out of {a} and {b}?", "Which {noun} is older, {a} or {b}?",
         "Which {noun} was born first, {a} or {b}?", "Between {a} and {b}, who is older?", "Is {a} or {b} older?"),
        ("Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?", "Which {noun} is younger, {a} or {b}?",
         "Which {noun} was born later, {a} or {b}?", "Between {a} and {b}, who is younger?"),
    ),
    Relation.DIED: (
        ("Who died first, {a} or {b}?", "Who died earlier, {a} or {b}?", "Which {noun} died first, {a} or {b}?"),
        ("Who died later, {a} or {b}?", "Which {noun} died later, {a} or {b}?"),
    ),
    Relation.RELEASED: (
        ("Which {noun} came out first, {a} or {b}?", "Which {noun} was released first, {a} or {b}?",
         "Which {noun} was released earlier, {a} or {b}?", "Was {a} or {b} released first?",
         "Which came out earlier, {a} or {b}?"),
        ("Which {noun} came out later, {a} or {b}?", "Which {noun} was released more recently, {a} or {b}?",
         "Which {noun} was released later, {a} or {b}?"),
    ),
    Relation.FOUNDED: (
        ("Which {noun} was founded first, {a} or {b}?", "Which {noun} was established earlier, {a} or {b}?",
         "Which was founded first, {a} or {b}?", "Which {noun} is older, {a} or {b}?"),
        ("Which {noun} was founded later, {a} or {b}?", "Which {noun} was founded more recently, {a} or {b}?"),
    ),
    Relation.POPULATION: (
        ("Which {noun} has fewer inhabitants, {a} or {b}?", "Which has a smaller population, {a} or {b}?"),
        ("Which {noun} has more inhabitants, {a} or {b}?", "Which has a larger population, {a} or {b}?",
         "Does {a} or {b} have more inhabitants?"),
    ),
}  # fmt: skip
LONGER = ("Who lived longer, {a} or {b}?", "Which {noun} lived longer, {a} or {b}?")
SHORTER = ("Who died at a younger age, {a} or {b}?",)
SAME_NATION = (
    "Are {a} and {b} of the same nationality?", "Do {a} and {b} have the same nationality?",
    "Were {a} and {b} of the same nationality?", "Did {a} and {b} have the same nationality?",
    "Are both {a} and {b} from the same country?", "Are {a} and {b} from the same country?",
    "Do both {a} and {b} share the same nationality?", "Did {a} and {b} share the same nationality?",
)  # fmt: skip
BOTH_OF_NATION = ("Are {a} and {b} both {value}?", "Are both {a} and {b} {value}?", "Were {a} and {b} both {value}?")
SAME_ORIGIN = (
    "Are {a} and {b} from the same country?", "Are both {a} and {b} from the same country?",
    "Are the {noun}s {a} and {b} from the same country?", "Do both {noun}s {a} and {b} come from the same country?",
)  # fmt: skip
BOTH_OF_ORIGIN = ("Are {a} and {b} both {value} {noun}s?", "Are both {noun}s, {a} and {b}, {value}?")
SAME_COUNTRY = (
    "Are {a} and {b} located in the same country?", "Are both {a} and {b} located in the same country?",
    "Are {a} and {b} both located in the same country?", "Are {a} and {b} in the same country?",
)  # fmt: skip
BOTH_TRADES = ("Are {a} and {b} both {value}s?", "Were both {a} and {b} {value}s?", "Are both {a} and {b} {value}s?")
BOTH_KINDS = ("Are {a} and {b} both {value}s?", "Are both {a} and {b} {value}s?")
SHARED_NATION = (
    "What nationality do {a} and {b} share?", "What is the nationality of both {a} and {b}?",
    "{a} and {b} are of which nationality?",
)  # fmt: skip
SHARED_TRADE = (
    "What occupation do {a} and {b} share?", "What profession do {a} and {b} have in common?",
    "{a} and {b} both have which occupation?", "What do {a} and {b} both do for a living?",
)  # fmt: skip
OF_NATION = ("Who is {value}, {a} or {b}?", "Which {noun} is {value}, {a} or {b}?")
OF_ORIGIN = ("Which {noun} is {value}, {a} or {b}?", "Is {a} or {b} a {value} {noun}?")
SAME_MAKER = {
    Relation.DIRECTOR: (
        "Do the {noun}s {a} and {b} have the same director?", "Were {a} and {b} directed by the same person?",
        "Are {a} and {b} directed by the same person?",
    ),
    Relation.PERFORMER: (
        "Are {a} and {b} by the same performer?", "Do the {noun}s {a} and {b} have the same performer?",
    ),
    Relation.AUTHOR: ("Do {a} and {b} have the same author?", "Were {a} and {b} written by the same person?"),
}  # fmt: skip
# Over what the makers of two works are: {maker} is what they are called.
MAKERS = {Relation.DIRECTOR: "director", Relation.PERFORMER: "performer", Relation.AUTHOR: "author"}
MAKER_FIRST: dict[Relation, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Relation.BORN: (
        ("Which {noun} has the {maker} who was born first, {a} or {b}?",
         "Which {noun} has the {maker} who was born earlier, {a} or {b}?",
         "Which {noun} has the {maker} who is older, {a} or {b}?", "Which {noun} whose {maker} is older, {a} or {b}?"),
        ("Which {noun} has the {maker} born later, {a} or {b}?",
         "Which {noun} has the {maker} who was born later, {a} or {b}?",
         "Which {noun} has the {maker} who is younger, {a} or {b}?",
         "Which {noun} whose {maker} is younger, {a} or {b}?"),
    ),
    Relation.DIED: (
        ("Which {noun} has the {maker} who died first, {a} or {b}?",
         "Which {noun} has the {maker} who died earlier, {a} or {b}?"),
        ("Which {noun} has the {maker} who died later, {a} or {b}?",),
    ),
}  # fmt: skip
SAME_MAKERS_NATION = (
    "Do the {maker}s of the {noun}s {a} and {b} have the same nationality?",
    "Do {maker} of {noun} {a} and {maker} of {noun} {b} have the same nationality?",
    "Do both {noun}s, {a} and {b}, have the {maker}s that share the same nationality?",
    "Are the {maker}s of both {noun}s {a} and {b} from the same country?",
    "Are {maker} of {noun} {a} and {maker} of {noun} {b} from the same country?",
)
