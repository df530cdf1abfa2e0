"""Who is served: places and those who leave them, tokens, names, bodies, and the files of the playground."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from sleuth.page.document import THEME
from sleuth.serve.agent.server import PAGE_FILES, POLICY, THEME_PATH, ServerLimits

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Emma"}]
BODY = {"model": "wise", "messages": ASKED}


def eventually(met: Callable[[], bool]) -> None:
    """Waits until it is so."""
    until = time.monotonic() + 10
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_full_house_is_told_when_to_come_again(serving: Callable[..., Any]) -> None:
    with serving(ServerLimits(slots=2, wait=0), opened=False) as house:
        client = house.client()
        streams = [client.chat.completions.create(model="wise", messages=ASKED, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 questions are being answered") as error:
            client.chat.completions.create(model="wise", messages=ASKED)
        assert (error.value.response.headers["retry-after"], error.value.code) == ("1", "rate_limit_exceeded")
        assert (house.health()["under_way"], house.figure("sleuth_overloaded_total")) == (2, 1)
        house.shelf.open.set()
        answers = ["".join(chunk.choices[0].delta.content or "" for chunk in stream) for stream in streams]
        assert answers == ["Emma", "Emma"]
        assert client.chat.completions.create(model="wise", messages=ASKED).choices[0].message.content == "Emma"


def test_more_questions_than_places_wait_their_turn(serving: Callable[..., Any]) -> None:
    """Official clients, eight for each place, without a retry."""

    def asked(number: int) -> Any:
        question: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"What is book{number}"}]
        return client.chat.completions.create(model="wise", messages=question).choices[0].message.content

    with serving(ServerLimits(slots=2), opened=False) as house, ThreadPoolExecutor(16) as pool:
        client = house.client()
        answers = [pool.submit(asked, number) for number in range(16)]
        try:
            eventually(lambda: house.health().get("waiting") == 14 or any(answer.done() for answer in answers))
            assert house.figure("sleuth_overloaded_total") == 0
            assert (house.health()["under_way"], house.figure("sleuth_waiting")) == (2, 14)
        finally:
            house.shelf.open.set()  # a failure must not leave the pool waiting for its answers
        assert [answer.result() for answer in answers] == [f"book{number}" for number in range(16)]
        assert house.figure("sleuth_overloaded_total") == 0


def test_nobody_waits_longer_than_is_allowed(serving: Callable[..., Any]) -> None:
    with serving(ServerLimits(slots=1, wait=0.2), opened=False) as house:
        stream = house.client().chat.completions.create(model="wise", messages=ASKED, stream=True)
        refusal = house.post(BODY)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
        assert house.health() == {"status": "ok", "under_way": 1, "places": 1, "waiting": 0}
        stream.close()


def test_a_client_that_leaves_the_waiting_room_is_not_waited_for(serving: Callable[..., Any]) -> None:
    with serving(ServerLimits(slots=1), opened=False) as house:
        stream = house.client().chat.completions.create(model="wise", messages=ASKED, stream=True)
        with pytest.raises(httpx.ReadTimeout):
            house.post(BODY, timeout=httpx.Timeout(5, read=0.3))
        eventually(lambda: house.health()["waiting"] == 0)
        assert house.shelf.asked == ["Emma"]
        house.shelf.open.set()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Emma"
        eventually(lambda: house.health()["under_way"] == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(serving: Callable[..., Any], stream: bool) -> None:
    with serving(ServerLimits(slots=1), opened=False) as house:
        with pytest.raises(httpx.ReadTimeout):
            house.post({**BODY, "stream": stream}, timeout=httpx.Timeout(5, read=0.3))
        eventually(lambda: house.health()["under_way"] == 0)
        eventually(lambda: house.figure("sleuth_disconnects_total") == 1)
        # The episode was given up: it never came to its answer.
        house.shelf.open.set()
        assert house.client().chat.completions.create(model="wise", messages=ASKED).choices[0].message.content == "Emma"
        assert house.figure('sleuth_episodes_total{stop="answered"}') == 1


def test_a_token_is_asked_for(serving: Callable[..., Any]) -> None:
    with serving(token="secret") as house:
        for key in ("none", "secre"):
            with pytest.raises(openai.AuthenticationError, match="token") as error:
                house.client(key).chat.completions.create(model="wise", messages=ASKED)
            assert error.value.code == "invalid_api_key"
        found = house.client("secret").chat.completions.create(model="wise", messages=ASKED)
        assert found.choices[0].message.content == "Emma"
        open_to_all = [path for path in ("/", THEME_PATH, *PAGE_FILES, "/health", "/metrics", "/v1/models", "/nowhere")
                       if httpx.get(house.url + path).status_code == 200]  # fmt: skip
        assert open_to_all == ["/", THEME_PATH, *PAGE_FILES, "/health"]


def test_pages_of_other_sites_are_kept_out(serving: Callable[..., Any]) -> None:
    with serving(names=["box.lan"]) as house:
        for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""):
            refused = house.post(BODY, headers={"host": name})
            assert (refused.status_code, refused.json()["error"]["type"]) == (421, "invalid_request_error")
        for name in ("localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "box.lan:1"):
            assert house.post(BODY, headers={"host": name}).status_code == 200
        plain = httpx.post(f"{house.url}/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
        assert (plain.status_code, "application/json" in plain.json()["error"]["message"]) == (415, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("GET", "/nowhere", 404, "'/nowhere'"),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("GET", "/playground/../application.py", 404, "application.py"),
        ("GET", "/playground/%2e%2e/application.py", 404, "application.py"),
    ],
)
def test_what_is_not_there_is_said_as_openai_says_it(
    house: Any, method: str, path: str, status: int, sentence: str
) -> None:
    answer = httpx.request(method, house.url + path)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]


def test_bodies_that_are_not_served(house: Any) -> None:
    large = house.post({**BODY, "user": "a" * 2**20})
    assert large.status_code == 413
    assert "1,048,576 bytes" in large.json()["error"]["message"]
    unknown = house.post({**BODY, "model": "unwise"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert house.post({**BODY, "model": None}).status_code == 200


def test_the_playground_brings_its_own_files(house: Any) -> None:
    page = httpx.get(f"{house.url}/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert httpx.get(house.url + THEME_PATH).text == THEME
    for path in PAGE_FILES:
        assert httpx.get(house.url + path).headers["x-content-type-options"] == "nosniff"
