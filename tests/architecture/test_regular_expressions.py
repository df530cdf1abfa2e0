"""Every regular expression of the package takes linear time on any text.

Patterns are found as `re.Pattern` objects in the modules and as calls of `re` in their source. Adversarial texts come
from each pattern's syntax tree: a short text that leads to a repeat, and then one character again and again.
"""

import ast
import importlib
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sleuth
from sleuth.agent.function_calls import Hermes

codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
PACKAGE = Path(sleuth.__file__).parent
RUNNING = frozenset({"search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"})
SIZES = (512, 4_096, 32_768, 1_000_000)
KEPT = (4, 1, 1)  # texts that are timed at the next size
LIMIT = 4.0  # growth of the time over growth of the text: 1 is linear, 8 and more is quadratic
NOISE_S = 0.004  # a shorter time says nothing about growth
COMMON = " a"
# Variables of functions and comprehensions from which a pattern is built.
VARIABLES: dict[str, dict[str, Any]] = {
    "agent/function_calls.py": {"call_format": Hermes()},
    "agent/observation.py": {"tags": ("think", "answer"), "added": [r"\[INST\]", r"<\|im_start\|>"]},
    "agent/tags.py": {"names": ("search", "calculator"), "tags": "think|search|calculator"},
    "synthesis/cloze/facts.py": {"names": "he|she|Ada Lovelace", "noun": "album"},
    "retrieval/dense/encoder_config.py": {"pattern": "bge-(small|base|large)-en(-v1.5)?"},
    "sft/gold_thoughts.py": {"gold": "Oslo", "flags": re.IGNORECASE},
}


class Site(NamedTuple):
    """A pattern, its module, and the method that runs it."""

    where: str
    pattern: re.Pattern[Any]
    method: str

    def seconds(self, text: str) -> float:
        given = text.encode() if isinstance(self.pattern.pattern, bytes) else text
        start = time.process_time()
        found = getattr(self.pattern, self.method)(given)
        if self.method == "finditer":
            for _ in found:
                pass
        return time.process_time() - start


def modules() -> Iterator[tuple[str, ast.Module, dict[str, Any]]]:
    """The path, source and names of every module that uses regular expressions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        where = path.relative_to(PACKAGE).as_posix()
        if any(isinstance(node, ast.Import) and node.names[0].name == "re" for node in ast.walk(tree)):
            module = importlib.import_module("sleuth." + where.removesuffix(".py").replace("/", "."))
            yield where, tree, vars(module) | VARIABLES.get(where, {})


def evaluated(node: ast.expr, names: dict[str, Any]) -> Any:
    """Evaluate an expression in a module; None if it needs a variable that is not defined."""
    try:
        return eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(names))  # noqa: S307 - our own source
    except (NameError, AttributeError, TypeError):
        return None


def held(value: object, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """The patterns that a value holds: itself, in containers, or as attributes of our classes and objects."""
    if isinstance(value, re.Pattern):
        yield value
        return
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    elif getattr(value if isinstance(value, type) else type(value), "__module__", "").startswith("sleuth"):
        inner = [*vars(value).values()] if hasattr(value, "__dict__") else []
    for each in inner if depth else ():
        yield from held(each, depth - 1)


@cache
def sites() -> list[Site]:
    """Every pattern of the package with each method that runs it; `finditer` where none is seen to."""
    home: dict[re.Pattern[Any], str] = {}
    methods: dict[re.Pattern[Any], set[str]] = defaultdict(set)
    for where, tree, names in modules():
        for value in list(names.values()):
            home |= {pattern: where for pattern in held(value) if pattern not in home}
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("re"), attr="compile"), args=[written, *rest]):
                    flags = evaluated(rest[0], names) if rest else 0
                    source = evaluated(written, names)
                    assert source is not None, f"{where}: {ast.unparse(node)}: add its variables to VARIABLES"
                    home.setdefault(re.compile(source, flags or 0), where)
                case ast.Call(func=ast.Attribute(value=ast.Name("re"), attr=attr), args=[written, *_]) if (
                    attr in RUNNING
                ):
                    source = evaluated(written, names)
                    assert source is not None, f"{where}: {ast.unparse(node)}: add its variables to VARIABLES"
                    pattern = re.compile(source)
                    home.setdefault(pattern, where)
                    methods[pattern].add(attr)
                case ast.Attribute(value=holder, attr=attr) if attr in RUNNING:
                    if isinstance(pattern := evaluated(holder, names), re.Pattern):
                        methods[pattern].add(attr)
    found = []
    for pattern, where in home.items():
        used = {"finditer" if name not in ("match", "fullmatch") else name for name in methods[pattern]}
        found += [Site(where, pattern, method) for method in sorted(used or {"finditer"})]
    return found


def sample(tree: Any) -> str:
    """A short text that a syntax tree matches, or nearly so: look-arounds and references are left out."""
    return "".join(_one(op, argument) for op, argument in tree)


def _one(op: Any, argument: Any) -> str:
    match op:
        case codes.LITERAL:
            return chr(argument)
        case codes.NOT_LITERAL:
            return "a" if argument != ord("a") else "b"
        case codes.ANY:
            return "a"
        case codes.IN:
            return next(iter(members(argument)), "")
        case codes.BRANCH:
            return sample(argument[1][0])
        case codes.SUBPATTERN:
            return sample(argument[3])
        case codes.ATOMIC_GROUP:
            return sample(argument)
        case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
            return sample(argument[2]) * max(1, int(argument[0]))
    return ""


def members(klass: Any) -> Iterator[str]:
    """Some characters of a class."""
    outside = klass[0][0] is codes.NEGATE
    if outside:
        matcher = re.compile(_class(klass))
        yield from (character for character in " aA0.-<(\n" if matcher.match(character))
        return
    for op, argument in klass:
        match op:
            case codes.LITERAL:
                yield chr(argument)
            case codes.RANGE:
                yield chr(argument[0])
            case codes.CATEGORY:
                yield {
                    codes.CATEGORY_SPACE: " ",
                    codes.CATEGORY_DIGIT: "0",
                    codes.CATEGORY_WORD: "a",
                    codes.CATEGORY_NOT_SPACE: "a",
                    codes.CATEGORY_NOT_DIGIT: "a",
                    codes.CATEGORY_NOT_WORD: ".",
                }[argument]


def _class(klass: Any) -> str:
    """The class as it is written in a pattern."""
    names = {
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_NOT_WORD: r"\W",
    }
    written = ""
    for op, argument in klass:
        match op:
            case codes.NEGATE:
                written += "^"
            case codes.LITERAL:
                written += re.escape(chr(argument))
            case codes.RANGE:
                written += f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
            case codes.CATEGORY:
                written += names[argument]
    return f"[{written}]"


def leads(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """For each repeat of a syntax tree: a text that leads to it, and one that it repeats."""
    for op, argument in tree:
        match op:
            case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
                if argument[1] > 8:
                    yield before, sample(argument[2])
                yield from leads(argument[2], before)
            case codes.SUBPATTERN:
                yield from leads(argument[3], before)
            case codes.ATOMIC_GROUP:
                yield from leads(argument, before)
            case codes.BRANCH:
                for branch in argument[1]:
                    yield from leads(branch, before)
            case codes.ASSERT | codes.ASSERT_NOT:
                yield from leads(argument[1], before)
        before += _one(op, argument)


def characters(tree: Any) -> set[str]:
    """Characters that a syntax tree names, one of each class."""
    found: set[str] = set()
    for op, argument in tree:
        match op:
            case codes.LITERAL | codes.NOT_LITERAL:
                found.add(chr(argument))
            case codes.IN:
                found.update(list(members(argument))[:4])
            case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
                found |= characters(argument[2])
            case codes.SUBPATTERN:
                found |= characters(argument[3])
            case codes.ATOMIC_GROUP:
                found |= characters(argument)
            case codes.BRANCH:
                found = found.union(*(characters(branch) for branch in argument[1]))
            case codes.ASSERT | codes.ASSERT_NOT:
                found |= characters(argument[1])
    return found


def adversarial(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """Prefixes, and the text to repeat after them."""
    tree = parser.parse(
        pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    )
    ways = list(dict.fromkeys(leads(tree)))
    alphabet = sorted(characters(tree) | set(COMMON))
    repeated = list(dict.fromkeys(body for _, body in ways if body))
    signs = [sign for sign in alphabet if not sign.isalnum()][:8] + [sign for sign in alphabet if sign.isalnum()][:3]
    begins = list(dict.fromkeys(["", *(before for before, _ in ways)]))
    texts = [(before, sign) for before in begins[:8] for sign in dict.fromkeys([*signs, *repeated[:6]])]
    texts += [("", before + body) for before, body in ways if before]
    texts += [("", first + second) for first, second in permutations([*signs[:5], *signs[-2:]], 2)]
    texts += [("", sample(tree)), ("", sample(tree)[:-1])]
    return [(before, body) for before, body in dict.fromkeys(texts) if body]


def text(before: str, body: str, size: int) -> str:
    """About that many characters; the last one ends no match."""
    return (before + body * (size // len(body) + 1))[:size] + "\n\0"


def worst(site: Site) -> tuple[float, str]:
    """The largest growth of a pattern and the text that caused it: every text small, the slowest of them larger."""
    timed = [(site.seconds(text(*each, SIZES[0])), each) for each in adversarial(site.pattern)]
    for (small, large), kept in zip(pairwise(SIZES), KEPT, strict=True):
        again = []
        for seconds, each in timed:
            again.append((site.seconds(text(*each, large)), each))
            if growth(seconds, again[-1][0], large / small) > LIMIT:  # once more: the machine may have been busy
                ratio = growth(site.seconds(text(*each, small)), site.seconds(text(*each, large)), large / small)
                if ratio > LIMIT:
                    return ratio, f"{each[0][:40]!r} + {each[1][:40]!r} * n"
        timed = sorted(again)[-kept:]
    return 0.0, ""


def growth(before: float, after: float, times: float) -> float:
    """Growth of the time relative to the growth of the text."""
    return after / max(before, NOISE_S / times) / times if after > NOISE_S else 0.0


def test_a_quadratic_pattern_is_noticed() -> None:
    quadratic, linear = (re.compile(source) for source in (r"<\s*/?\s*x", r"<\s*+/?+\s*+x"))
    assert worst(Site("here", quadratic, "finditer"))[0] > LIMIT
    assert worst(Site("here", linear, "finditer"))[0] == 0.0


def test_patterns_are_found() -> None:
    wheres = {site.where for site in sites()}
    assert {"agent/tags.py", "agent/observation.py", "corpus/markdown.py", "reward/answers.py"} <= wheres


@pytest.mark.parametrize("where", [where for where, _, _ in modules()])
def test_every_pattern_takes_linear_time(where: str) -> None:
    slow = {}
    for site in sites():
        if site.where == where and (found := worst(site))[0] > LIMIT:
            slow[f"{site.method} {site.pattern.pattern!r}"] = f"{found[0]:.1f} times the growth of {found[1]}"
    assert slow == {}
