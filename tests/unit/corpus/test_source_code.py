"""Source code and notebooks."""

import json

import pytest

from sleuth.corpus.content import Content
from sleuth.corpus.source_code import read_code, read_notebook


def test_definitions_are_headings() -> None:
    source = "import os\n\nclass Index:\n\tdef search(self):\n        return 1\n\nasync def main():\n    pass\n"
    assert read_code(source) == Content(
        "",
        "import os\nclass Index:\n    def search(self):\n        return 1\nasync def main():\n    pass",
        headings={1: 1, 2: 2, 4: 1},
    )
    assert read_code("export default class A {\n  x = 1\n}\npub fn f() {}").headings == {0: 1, 3: 1}


def test_generated_code_is_reported() -> None:
    with pytest.raises(ValueError, match="generated: a line has 2,001 characters"):
        read_code("var a = 1;\n" + "x" * 2001)


def test_cells_of_a_notebook() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A study\n", "Some *words*."]},
        {"cell_type": "code", "source": "x = 1\n\nprint(x)", "outputs": [{"text": "noise"}]},
        {"cell_type": "markdown", "source": "## Results"},
    ]
    expected = Content("A study", "A study\nSome words.\nx = 1\nprint(x)\nResults", headings={0: 1, 4: 2})
    assert read_notebook(json.dumps({"cells": cells})) == expected
    old = [{"cell_type": "code", "input": ["x = 1"]}]
    assert read_notebook(json.dumps({"worksheets": [{"cells": old}]})).text == "x = 1"


@pytest.mark.parametrize(
    "source", ["", "{", "[]", "{}", '{"cells": [1]}', '{"cells": [{"source": "x"}]}', "[" * 10_000]
)
def test_damaged_notebook_is_reported(source: str) -> None:
    with pytest.raises(ValueError, match="not a readable notebook"):
        read_notebook(source)
