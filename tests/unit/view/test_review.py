"""The review server: questions with evidence out, decisions in, each on disk at once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.view.review import Review, application, decisions_path, read_decisions

ROWS = [
    {
        "id": f"q{number}",
        "question": f"Question {number}?",
        "golden_answers": [f"answer {number}"],
        "data_source": "set",
        "supporting_ids": ["p1"],
        "evidence": [{"id": "p1", "quote": "A quote."}, "odd"],
    }
    for number in range(3)
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def client(file: Path) -> Iterator[TestClient]:
    passage = Passage("p1", '"T"\nA quote. answer 1')
    with Review.open(file, {"p1": passage}.get) as review:
        yield TestClient(application(review), base_url="http://127.0.0.1:8091")


def test_questions_have_their_evidence(client: TestClient) -> None:
    listing = client.get("/api/questions").json()
    assert [each["id"] for each in listing["questions"]] == ["q0", "q1", "q2"]
    detail = client.get("/api/question", params={"id": "q1"}).json()
    assert detail["evidence"] == [{"id": "p1", "quotes": ["A quote."], "contents": '"T"\nA quote. answer 1'}]
    assert (detail["golden_answers"], detail["action"]) == (["answer 1"], None)
    assert client.get("/api/question", params={"id": "none"}).status_code == 404
    assert client.get("/api/question").status_code == 400


def test_decisions_are_written_at_once_and_read_again(client: TestClient, file: Path) -> None:
    assert client.post("/api/decision", json={"id": "q0", "action": "drop"}).json()["action"] == "drop"
    edit = {"id": "q1", "action": "edit", "question": "New?", "golden_answers": ["x"]}
    assert client.post("/api/decision", json=edit).json()["question"] == "New?"
    assert {name: each.action for name, each in read_decisions(decisions_path(file)).items()} == {
        "q0": "drop",
        "q1": "edit",
    }
    assert [each["action"] for each in client.get("/api/questions").json()["questions"]] == ["drop", "edit", None]
    client.post("/api/decision", json={"id": "q0", "action": "undo"})
    assert "q0" not in read_decisions(decisions_path(file))
    assert client.get("/api/question", params={"id": "q0"}).json()["action"] is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "none", "action": "keep"}, 404),
        ({"id": "q0", "action": "burn"}, 422),
        ({"id": "q0", "action": "edit"}, 422),
        ({"id": "q0", "action": "edit", "question": "Q?", "golden_answers": [" "]}, 422),
        ({"id": "q0", "action": "keep", "more": 1}, 422),
    ],
)
def test_bad_decisions(client: TestClient, file: Path, body: dict[str, object], status: int) -> None:
    answer = client.post("/api/decision", json=body)
    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)
    assert decisions_path(file).read_bytes() == b""


def test_requests_of_other_sites_are_refused(client: TestClient, file: Path) -> None:
    body = json.dumps({"id": "q0", "action": "drop"})
    headers = {"origin": "http://evil.example", "content-type": "application/json"}
    assert client.post("/api/decision", content=body, headers=headers).status_code == 403
    assert client.post("/api/decision", content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/api/questions", headers={"host": "evil.example"}).status_code == 421
    assert decisions_path(file).read_bytes() == b""


def test_page_and_headers(client: TestClient) -> None:
    page = client.get("/")
    assert "review.js" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/static/review.js").status_code == 200
    assert client.get("/static/../review.py").status_code == 404
    assert client.get("/theme.css").status_code == 200


def test_one_reviewer_at_a_time(file: Path, tmp_path: Path) -> None:
    with Review.open(file), pytest.raises(InputError, match="already open"), Review.open(file):
        raise AssertionError
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no questions"), Review.open(tmp_path / "empty.jsonl"):
        raise AssertionError
