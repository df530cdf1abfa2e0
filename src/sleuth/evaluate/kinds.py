"""The kinds of question that results are told apart by."""

from sleuth.records import Question

TYPES = {"comparison": "comparison", "yes_no": "yes/no"}
_ORDER = ("1 hop", "2 hops", "3 hops", "4 hops", *TYPES.values())


def kind(question: Question) -> str:
    """Comparisons and yes/no questions by their type, others by their hops, and those without by their data source."""
    if question.type in TYPES:
        return TYPES[question.type]
    if question.hops is None:
        return question.data_source
    return "1 hop" if question.hops == 1 else f"{question.hops} hops"


def place(name: str) -> tuple[int, str]:
    """Sorts kinds by hops, then comparisons, yes/no questions, and the rest by name."""
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
