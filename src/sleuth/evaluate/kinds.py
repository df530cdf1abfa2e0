"""The kinds of question that results are told apart by."""

from sleuth.records import Question

TYPES = {"comparison": "comparison", "yes_no": "yes/no"}
_ORDER = ("1 hop", "2 hops", "3 hops", "4 hops", *TYPES.values())


def kind(question: Question) -> str:
    """What is known of its kind, and of a question of which nothing is, its data source."""
    return known_kind(question) or question.data_source


def known_kind(question: Question) -> str | None:
    """Comparisons and yes/no questions by their type, others by their hops, else by whatever type they have."""
    if question.type in TYPES:
        return TYPES[question.type]
    if question.hops is not None:
        return "1 hop" if question.hops == 1 else f"{question.hops} hops"
    return question.type.replace("_", " ") if question.type else None


def place(name: str) -> tuple[int, str]:
    """Sorts kinds by hops, then comparisons, yes/no questions, and the rest by name."""
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
