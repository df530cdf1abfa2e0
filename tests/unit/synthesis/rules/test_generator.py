"""Rules over ordinary documents: what each makes of a passage, and what it leaves alone."""

import pytest

from sleuth.corpus.content import table_lines
from sleuth.records import Passage
from sleuth.synthesis.rules.english import base_form, predicate, third_person
from sleuth.synthesis.rules.entries import parse_term, read_entries
from sleuth.synthesis.rules.generator import RulesConfig, make_questions
from sleuth.synthesis.rules.sentence_questions import ProperNames
from sleuth.synthesis.rules.table_questions import line_drafts, table_drafts

FILLER = "We talked about the weather, which was fine, and about the soup."
NAMES = "Everybody here likes Lintian, and Lintian likes the Debian people."


def made(text: str, title: str = "git-stash(1)", position: int = 3) -> dict[str, tuple[str, ...]]:
    """The questions about one passage among others, with their answers."""
    passage = Passage("p", f'"{title}"\n{text}', {"source": "p.md", "position": position})
    others = [Passage(str(number), f'"Other {number}"\n{FILLER if number else NAMES}') for number in range(60)]
    result = make_questions([passage, *others], RulesConfig(1000, per_passage=20))
    return {row.question.question: row.question.golden_answers for row in result.rows}


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        (
            "- --no-verify\n- Bypass the pre-commit hook of the repository.",
            "Which option of git-stash(1) bypasses the pre-commit hook of the repository?",
            "--no-verify",
        ),
        (
            "-q, --quiet\nOperate quietly.\n-p, --patch\nShow the hunks and ask about each of them.",
            "Which option of git-stash(1) shows the hunks and asks about each of them?",
            "--patch",
        ),
        (
            "math.ulp(x)¶\nReturn the value of the least significant bit of the float x: it is small.",
            "Which function in git-stash(1) returns the value of the least significant bit of the float x?",
            "math.ulp",
        ),
        (
            "gpg.ssh.allowedSignersFile\nA file containing ssh public keys which are trusted by the user.",
            "Which setting in git-stash(1) is a file containing ssh public keys which are trusted by the user?",
            "gpg.ssh.allowedSignersFile",
        ),
        (
            "work_mem (integer)\nSpecifies the amount of memory used by a sort. It defaults to 4 megabytes.",
            "What is the default value of the setting work_mem in git-stash(1)?",
            "4 megabytes",
        ),
        ("foo.bar()\nDo it.\nNew in version 3.11.", "In which version was foo.bar in git-stash(1) added?", "3.11"),
        (
            "DROP ROLE — remove a database role from the cluster",
            "What in git-stash(1) removes a database role from the cluster?",
            "DROP ROLE",
        ),
        (
            "Lintian is the static analysis tool for Debian packages.",
            "In git-stash(1), what is the static analysis tool for Debian packages?",
            "Lintian",
        ),
        (
            "The `commit-msg2` hook detects duplicate trailers in messages.",
            "In git-stash(1), which hook detects duplicate trailers in messages?",
            "commit-msg2",
        ),
        (
            "The maximum identifier length is 63 bytes.",
            "In git-stash(1), what is the maximum identifier length?",
            "63 bytes",
        ),
        (
            "The first stanza in the file is called the header stanza.",
            "In git-stash(1), what is the first stanza in the file called?",
            "header stanza",
        ),
        (
            "Manual pages for modules must be installed in /usr/share/man/man3.",
            "In git-stash(1), where must manual pages for modules be installed?",
            "/usr/share/man/man3",
        ),
        (
            "Travel receipts must be uploaded to the portal within ten days.",
            "In git-stash(1), within how many days must travel receipts be uploaded to the portal?",
            "ten days",
        ),
        (
            "A virtual package is a package which only the Provides field of others declares.",
            "In git-stash(1), what is the term for a package which only the Provides field of others declares?",
            "",
        ),
        (
            "See the Filesystem Hierarchy Standard (FHS) for paths.",
            "What does FHS stand for?",
            "Filesystem Hierarchy Standard",
        ),
        ("HTML stands for Hypertext Markup Language.", "What does HTML stand for?", "Hypertext Markup Language"),
    ],
)
def test_facts(text: str, question: str, answer: str) -> None:
    found = made(text)
    if not answer:  # "others" refers to other text
        assert question not in found
        return
    assert found[question][0] == answer


def test_key_value_lines_of_a_document() -> None:
    text = "Owner: Jane Doe\nEffective date: 2024-05-01\nReview cycle: every two years"
    found = made(text, "Travel policy", position=0)
    assert found['What is the owner of "Travel policy"?'] == ("Jane Doe",)
    assert found['What is the effective date of "Travel policy"?'] == ("2024-05-01",)
    message = "Here is an error.\nCounting objects: 6020 of many\nIt goes on."
    assert list(line_drafts(message, "x", opening=False)) == []


def test_tables() -> None:
    text = "| Plan | Price | Seats |\n|---|---|---|\n| Basic | 10 euros | 5 |\n| Team | 40 euros | 25 |"
    questions = {draft.question: draft.answers for draft in table_drafts(text.replace("Plan", "Product"), "Prices")}
    assert questions["What is the price of product Team in Prices?"] == ("40 euros",)
    assert len(questions) == 4
    rows = "\n".join(table_lines(["Option", "Default"], [["cache.size", "64 MiB"], ["cache.age", "two days"]]))
    read = {draft.question: draft.answers for draft in table_drafts(rows, "Cache settings")}
    assert read['What is the default of option cache.age in "Cache settings"?'] == ("two days",)
    assert len(read) == 2
    assert list(table_drafts("Warning: hot; caution: wet\nfirst: one; second: two", "x")) == []
    # The output of a program, and rows whose header is in another passage.
    assert list(table_drafts(" a | b \n---+---\n 1 | 2", "x")) == []
    assert list(table_drafts("dev | Device files\nlib | Essential libraries", "x")) == []


@pytest.mark.parametrize(
    "text",
    [
        "- --no-verify\n- See the section above.",
        "This option is the same as the one before.",
        "it is a tool for packages that works.",
        "Note: this is only an example of a value.",
        "When the database is not reachable the service answers with an error and retries after 10 seconds.",
        "The answer is not known.",
        "Uploads are uploads of packages.",
        "$ git log\ncommit abc\nAuthor: me",
    ],
)
def test_prose_that_gives_no_question(text: str) -> None:
    assert made(text) == {}


def test_description_that_fits_two_terms_is_not_asked_about() -> None:
    text = "--mine\nKeep the version of one of the two sides.\n--ours2\nKeep the version of one of the two sides."
    assert made(text) == {}


def test_questions_are_limited_repeatable_and_excluded() -> None:
    lines = "\n".join(f"--option{number}\nSet the size of buffer number{number} of the kernel." for number in range(9))
    passage = Passage("p", f'"tool(1)"\n{lines}')
    first = make_questions([passage], RulesConfig(100, seed=1, per_passage=3))
    assert len(first.rows) == 3
    assert first.removed["over the limit"] == 6
    assert make_questions([passage], RulesConfig(100, seed=1, per_passage=3)).rows == first.rows
    assert make_questions([passage], RulesConfig(100, seed=2, per_passage=3)).rows != first.rows
    keys = frozenset({f"which option of tool 1 sets the size of buffer number{n} of the kernel" for n in range(9)})
    assert make_questions([passage], RulesConfig(100), excluded=keys).rows == []


@pytest.mark.parametrize(
    ("line", "term", "kind"),
    [
        ("-f, --file=NAME", "--file", "option"),
        ("-q--quiet", "--quiet", "option"),
        ("class bz2.BZ2File(filename, mode='r')", "bz2.BZ2File", "class"),
        ("@enum.unique", "enum.unique", "decorator"),
        ("giteveryday(7)", "giteveryday(7)", "manual page"),
        ("ZipInfo.compress_size", "ZipInfo.compress_size", "attribute"),
        ("MAX_SIZE", "MAX_SIZE", "constant"),
    ],
)
def test_terms(line: str, term: str, kind: str) -> None:
    entry = parse_term(line)
    assert entry is not None
    assert (entry.term, entry.kind) == (term, kind)


@pytest.mark.parametrize("line", ["Some words here", "It ends.", "word", "-f or --file may be given", "x" * 200])
def test_lines_that_are_no_terms(line: str) -> None:
    assert parse_term(line) is None


def test_entries_need_a_description() -> None:
    assert [entry.term for entry in read_entries("--a\n--b\nSet it.")] == ["--b"]


def test_english() -> None:
    assert [third_person(verb) for verb in ("copy", "push", "do", "set", "display")] == [
        "copies",
        "pushes",
        "does",
        "sets",
        "displays",
    ]
    assert [base_form(word) for word in ("copies", "pushes", "tests", "does", "class")] == [
        "copy",
        "push",
        "test",
        "do",
        None,
    ]
    assert predicate("Compile the source and return the module.") == "compiles the source and returns the module"
    assert predicate("The table is locked by the session.") is None
    assert predicate("RETURN subtotal times two or more") is None


def test_names_are_capitalised_everywhere() -> None:
    passages = [Passage("1", '"x"\nWe use Lintian and Lintian. The Package is a package. A Package is.')]
    assert ProperNames.from_passages(passages).names == {"Lintian"}


def test_terms_with_one_description_are_all_right() -> None:
    found = made("--max-age=<time>\n--min-age=<time>\nLimit the commits to a time range of the user.")
    assert found["Which option of git-stash(1) limits the commits to a time range of the user?"] == (
        "--min-age",
        "--max-age",
    )
