"""An evaluation on paper."""

import json
from collections.abc import Callable

from sleuth.evaluate.report import json_text, markdown
from sleuth.evaluate.suite import Evaluation

Make = Callable[..., Evaluation]


def test_markdown(evaluation: Make) -> None:
    found = markdown(
        evaluation(("one_hop", 1, "oslo", 1), ("one_hop", 1, "rome", 1), ("yes_no", 2, None, 0)), "Held out"
    )
    lines = found.splitlines()
    assert lines[0] == "# Held out"
    assert lines[2] == "| Kind | Questions | EM | F1 | Searches | Unusable |"
    assert lines[4].startswith("| 1 hop | 2 | 0.500 [0.095, 0.905] | 0.500 [0.095, 0.905] | 1.000 [0.342, 1.000] | 0 |")
    assert lines[5] == "| yes/no | 1 | – | – | – | 1 |"
    assert lines[6].startswith("| all | 3 | 0.500")


def test_json(evaluation: Make) -> None:
    found = evaluation(("one_hop", 1, "oslo", 1))
    assert json.loads(json_text(found)) == found.as_json()
