"""What agents return as a reward."""

from decimal import Decimal

import pytest

from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.agent_function import as_score, load_agent
from sleuth.records import Score

SPEC = "import:mine.run"


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (None, None),
        (1, Score(1.0)),
        (True, Score(1.0)),
        (Decimal("0.5"), Score(0.5)),
        (Score(1, {"em": 1}, (0, 2)), Score(1.0, {"em": 1.0}, (0.0, 2.0))),
    ],
)
def test_rewards(value: object, score: Score | None) -> None:
    assert as_score(SPEC, value) == score


@pytest.mark.parametrize(
    "value", ["1.0", float("nan"), float("inf"), [1.0], Score(float("nan")), Score(0.0, turns=(float("inf"),)), {}]
)
def test_other_values_fail_with_the_function_and_the_value(value: object) -> None:
    with pytest.raises(FunctionFailed, match=SPEC):
        as_score(SPEC, value)


def test_function_with_other_parameters_is_refused(agents: str) -> None:
    assert callable(load_agent(f"{agents}.run"))
    with pytest.raises(ConfigError, match=r"task, llm"):
        load_agent(f"{agents}.wrong")
