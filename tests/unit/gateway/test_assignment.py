"""Assignments survive the way over HTTP."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sleuth.agent.task import Task
from sleuth.gateway.assignment import Assignment
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question

ENDPOINT = Endpoint("http://10.0.0.1:8000/rollout/a/v1", "key", "policy/writer")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.text(), st.lists(st.text()), st.none() | st.booleans(), st.integers(0, 9), NUMBERS)
def test_assignment_survives_json(text: str, answers: list[str], known: bool | None, sample: int, heat: float) -> None:
    question = Question(
        "q", text, tuple(answers), "test", ("p1",), hops=2, answerable=known, prompt=({"role": "user"},)
    )
    assignment = Assignment("a", Task(question, 1, sample, 3, 4, heat, 0.9, 5), ENDPOINT)
    assert Assignment.from_json(json.loads(json.dumps(assignment.to_json()))) == assignment


def test_endpoint_uses_the_address_of_the_worker() -> None:
    row = Assignment("a", Task(Question("q", "Who?", (), "test")), ENDPOINT).to_json()
    moved = Assignment.from_json(row, "https://gateway.example:1/prefix/").endpoint
    assert moved == Endpoint("https://gateway.example:1/prefix/rollout/a/v1", "key", "policy/writer")
