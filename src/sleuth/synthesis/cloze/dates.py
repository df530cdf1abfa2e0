"""Dates as sentences have them, and which of two is earlier."""

import re

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
PLACES = {month: place for place, month in enumerate(MONTHS, 1)}
MONTH = rf"(?:{'|'.join(MONTHS)})"
DAY = rf"(?:\d{{1,2}} {MONTH},? \d{{4}}|{MONTH} \d{{1,2}}, \d{{4}})"
WHEN = rf"(?:{DAY}|{MONTH} \d{{4}}|\d{{4}})"
WORD = re.compile(r"[A-Za-z]+|\d+")


def aliases(date: str) -> tuple[str, ...]:
    """A date with day and month the other way round."""
    day_first = re.fullmatch(r"(\d{1,2}) ([A-Z]\w+),? (\d{4})", date)
    if day_first:
        return (f"{day_first[2]} {day_first[1]}, {day_first[3]}",)
    month_first = re.fullmatch(r"([A-Z]\w+) (\d{1,2}), (\d{4})", date)
    return (f"{month_first[2]} {month_first[1]} {month_first[3]}",) if month_first else ()


def earlier(one: str, other: str) -> bool | None:
    """Whether one date is before the other; None where they do not tell, such as a year and a day in it."""
    first, second = _parts(one), _parts(other)
    for mine, yours in zip(first, second, strict=True):
        if mine is None or yours is None:
            return None
        if mine != yours:
            return mine < yours
    return None


def year(date: str) -> int:
    """The year of a date; 0 where it has none."""
    return _parts(date)[0] or 0


def _parts(date: str) -> tuple[int | None, int | None, int | None]:
    """Year, month, day."""
    words = WORD.findall(date)
    numbers = [int(word) for word in words if word.isdigit()]
    month = next((PLACES[word] for word in words if word in PLACES), None)
    whole = next((number for number in numbers if number > 31), None)
    day = next((number for number in numbers if number <= 31), None)
    return whole, month, day
