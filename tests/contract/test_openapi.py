"""The OpenAPI of the server, held against the server: requests made from it, by its rules and against them."""

from collections.abc import Callable, Sequence
from typing import Any

import schemathesis
from hypothesis import settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import negative_data_rejection

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.service.openapi import ANSWERS, PAGE
from sleuth.retrieval.service.server import Facts, application
from sleuth.retrieval.wire import AccessAnswer, RetrieveAnswer, Row


class Echo:
    """Finds the query itself."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [[Hit(Passage(str(place), query), 1 / place) for place in range(1, min(k, 3) + 1)] for query in queries]


class Pages:
    """A page for every other url."""

    def get(self, url: str) -> Row | None:
        return {"url": url, "contents": "text"} if len(url) % 2 else None


app = application(Echo(), Facts("echo", "bm25", 3), pages=Pages(), names=["testserver"])
api = schemathesis.openapi.from_asgi("/openapi.json", app)


def answers(path: str) -> Callable[..., None]:
    """The test that every answer of a path is one the OpenAPI names."""

    @api.include(path=path).parametrize()
    @settings(max_examples=30, deadline=None)
    def test(case: Case[Any]) -> None:
        # The servers of the field read "3" and 3.0 and true as numbers, and so does this one: more than it promises.
        case.call_and_validate(excluded_checks=[negative_data_rejection])

    made: Callable[..., None] = test
    return made


# A name for each: tests of one name would be dealt out to the processes of a run as one.
test_retrieve = answers("/retrieve")
test_access = answers("/access")
test_healthz = answers("/healthz")
test_readyz = answers("/readyz")
test_metrics = answers("/metrics")


def test_the_openapi_names_every_path_and_problem() -> None:
    paths = app.openapi()["paths"]
    assert sorted(paths) == ["/access", "/healthz", "/metrics", "/readyz", "/retrieve"]
    assert {"200", "401", "413", "422", "503"} <= set(paths["/retrieve"]["post"]["responses"])
    assert {"200", "401", "404", "413", "422"} <= set(paths["/access"]["post"]["responses"])


def test_the_examples_have_the_shapes_they_stand_for() -> None:
    for example in ANSWERS.values():
        RetrieveAnswer.model_validate(example)
    AccessAnswer.model_validate(PAGE)
    bodies = [path["post"]["requestBody"] for path in app.openapi()["paths"].values() if "post" in path]
    assert all(body["content"]["application/json"]["schema"]["examples"] for body in bodies)
