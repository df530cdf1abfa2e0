"""Figures in README.md and docs match the current code, or name the commit they were measured at.

A table of figures has a comment above it: `<!-- figures: commit=abc1234 paths=src/sleuth/engines,src/sleuth/model -->`
names the commit (or commits, with a comma) it was measured at, and the files that can alter it. Where one of these
changed since, the section has to say so in its text: "measured at abc1234". `<!-- figures: none (REASON) -->` is for
numbers that nobody measured here: settings, arithmetic, figures of others. Without the whole history (an sdist, a
shallow clone) nobody can know whether a commit exists and what changed since: those tests have the marker `history`,
and are counted as not run.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# docs/log.md and docs/decisions are records of their day.
PAGES = [ROOT / "README.md", *sorted(each for each in (ROOT / "docs").glob("*.md") if each.name != "log.md")]
COMMENT = re.compile(r"^<!-- figures: (?:commit=(?P<commit>\S+) paths=(?P<paths>\S+)|none \((?P<reason>[^)]+)\)) -->$")
RULE = re.compile(r"^\|[-:| ]+\|$")
FIGURE = re.compile(r"^\W*\d")
MOSTLY = 1 / 3  # of the cells behind the first hold a figure


@dataclass(frozen=True)
class Table:
    """A table of figures: its location, the line above it, and the text of its section."""

    page: str
    line: int
    above: str
    section: str

    @property
    def comment(self) -> re.Match[str] | None:
        return COMMENT.match(self.above)

    @property
    def commits(self) -> list[str]:
        return self.comment["commit"].split(",") if self.comment and self.comment["commit"] else []

    @property
    def paths(self) -> list[str]:
        return self.comment["paths"].split(",") if self.comment and self.comment["paths"] else []

    def says(self, commit: str) -> bool:
        """Whether the section says that the figures were measured at a commit."""
        return re.search(rf"\b[Mm]easured at (?:[0-9a-f]{{7}}(?:,| and) )*{commit}\b", self.section) is not None


def tables(name: str, text: str) -> Iterator[Table]:
    """Yield the tables of figures of a page, and everything else below a figures comment."""
    lines = _unfenced(text.splitlines())
    heads = [number for number, line in enumerate(lines) if line.startswith("#")] + [len(lines)]
    for number in range(1, len(lines)):
        if not RULE.match(lines[number]):
            continue
        above = next((line for line in reversed(lines[: number - 1]) if line.strip()), "")
        body = list(_table(lines[number + 1 :]))
        cells = [cell.strip() for line in body for cell in line.strip().strip("|").split("|")[1:] if cell.strip()]
        if above.startswith("<!-- figures:") or (
            cells and sum(map(bool, map(FIGURE.match, cells))) >= MOSTLY * len(cells)
        ):
            first = max((each for each in heads if each < number), default=0)
            last = min(each for each in heads if each > number)
            section = " ".join(line for line in lines[first:last] if not line.startswith(("|", "<!--")))
            yield Table(name, number, above, section)


def _unfenced(lines: list[str]) -> list[str]:
    """The lines with those of code blocks emptied, so that numbers stay."""
    inside, found = False, []
    for line in lines:
        fence = line.startswith("```")
        found.append("" if inside or fence else line)
        inside ^= fence
    return found


def _table(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield line


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


FOUND = [table for page in PAGES for table in tables(page.name, page.read_text(encoding="utf-8"))]
NAMES = [f"{table.page}:{table.line}" for table in FOUND]


@pytest.mark.parametrize("table", FOUND, ids=NAMES)
def test_a_table_of_figures_names_its_commit_and_what_can_alter_it(table: Table) -> None:
    assert table.comment, f"{table.page}:{table.line} has figures; put above it <!-- figures: commit=... paths=... -->"
    for path in table.paths:
        assert (ROOT / path).exists(), f"{table.page}:{table.line}: {path} does not exist"
    for commit in table.commits:
        assert re.fullmatch("[0-9a-f]{7,40}", commit), f"{table.page}:{table.line}: {commit} is no commit"


@pytest.mark.history
@pytest.mark.parametrize(
    "table",
    [table for table in FOUND if table.commits],
    ids=[name for name, table in zip(NAMES, FOUND, strict=True) if table.commits],
)
def test_figures_are_of_todays_code_or_say_which_they_are_of(table: Table) -> None:
    for commit in table.commits:
        place = f"{table.page}:{table.line}"
        assert _git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0, f"{place}: there is no commit {commit}"
        changed = _git("diff", "--name-only", commit, "--", *table.paths).stdout.split()
        assert not changed or table.says(commit), (
            f"{place}: {len(changed)} files changed since {commit}, {changed[0]} among them; measure again, or write "
            f'"measured at {commit}" beside the table'
        )


PAGE = """
# One
Text, measured at 1111111 and 2222222.

<!-- figures: commit=1111111,2222222 paths=src -->
| model | EM | seconds |
|---|---|---|
| a | **.5** [.4, .6] | 3 |

## Two
| model | EM |
|---|---|
| a | .5 |

| option | meaning |
|---|---|
| `--k` | documents |

```
| set | read |
|---|---|
| in a block | 3 |
```
"""


def test_tables_of_figures_are_found() -> None:
    first, second = tables("page.md", PAGE)
    assert (first.commits, first.paths) == (["1111111", "2222222"], ["src"])
    assert first.says("1111111")
    assert first.says("2222222")
    assert not first.says("3333333")
    assert second.comment is None
    assert not second.says("1111111")
