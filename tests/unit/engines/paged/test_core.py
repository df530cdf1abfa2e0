"""The stop checker: which tokens may end a request, and its finish reason."""

import asyncio
from array import array
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.core import StopChecker
from sleuth.engines.paged.request import Request
from sleuth.errors import EngineFailure
from sleuth.model.tokens import Tokens

PIECES = ("<end>", "say", "</", "search", ">", "</search>", "!")


@pytest.fixture(scope="module")
def spoken(spelled: Callable[[Sequence[str]], Tokens]) -> Tokens:
    return spelled(PIECES)


@pytest.fixture(scope="module")
def model(reciter: Callable[..., PreTrainedModel], spoken: Tokens) -> PreTrainedModel:
    return reciter(spoken, [])


@pytest.fixture
def checker(model: PreTrainedModel, spoken: Tokens) -> StopChecker:
    return StopChecker(model, spoken)


def ending(checker: StopChecker, stops: tuple[str, ...]) -> set[str]:
    """The pieces after which a row with these stops may be over."""
    kind = checker.acquire(stops)
    may = checker.may_end_CV[kind, : len(PIECES)]
    return {piece for piece, ends in zip(PIECES, may, strict=True) if ends}


def judged(checker: StopChecker, spoken: Tokens, said: str, sampling: Sampling, limit: int | None = None) -> Request:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Completion] = loop.create_future()
    loop.close()
    ids = spoken.encode(said)
    row = Request(array("i", [1, *ids]), 1, sampling, limit or sampling.max_tokens, 0, (0, 0), None, None, future)
    row.logprobs = [0.0] * len(ids)
    checker.check(row)
    return row


def test_only_eos_and_tokens_that_can_complete_a_stop_may_end(checker: StopChecker) -> None:
    assert ending(checker, ()) == {"<end>"}
    assert ending(checker, ("</search>",)) == {"<end>", ">", "</search>"}
    assert ending(checker, ("</search>", "!")) == {"<end>", ">", "</search>", "!"}


def test_stop_strings_need_a_tokenizer(model: PreTrainedModel) -> None:
    checker = StopChecker(model, None)
    assert ending(checker, ()) == {"<end>"}
    with pytest.raises(EngineFailure, match="tokenizer"):
        checker.acquire(("!",))


def test_requests_with_equal_stops_share_a_class(checker: StopChecker) -> None:
    assert checker.acquire(("!",)) == checker.acquire(("!",)) != checker.acquire((">",))


def test_released_classes_are_reused(checker: StopChecker) -> None:
    kinds = set()
    kept = checker.acquire(("say",))
    for number in range(50):
        kinds.add(kind := checker.acquire((f"{number}!",)))
        checker.release(kind)
    assert len(kinds) == 1
    assert kept not in kinds
    assert ending(checker, ("say",)) == {"<end>", "say"}


def test_a_class_is_kept_while_one_request_uses_it(checker: StopChecker) -> None:
    first, second = checker.acquire(("!",)), checker.acquire(("!",))
    checker.release(first)
    assert checker.acquire((">",)) != second
    checker.release(second)
    assert checker.acquire(("say",)) == second


@pytest.mark.parametrize(
    ("said", "finish", "stop"),
    [
        ("say</search>", Finish.STOP, "</search>"),
        ("say", None, None),
        ("saysearch>", None, None),
        ("say<end>", Finish.END, None),
        ("saysaysaysay", Finish.LENGTH, None),
        ("saysaysay</search>", Finish.STOP, "</search>"),
        ("saysaysay<end>", Finish.END, None),
    ],
)
def test_finish_reasons(
    checker: StopChecker, spoken: Tokens, said: str, finish: Finish | None, stop: str | None
) -> None:
    row = judged(checker, spoken, said, Sampling(4, stops=("</search>",)))
    assert (row.finish, row.stop) == (finish, stop)


def test_context_length_ends_a_request_before_max_tokens(checker: StopChecker, spoken: Tokens) -> None:
    assert judged(checker, spoken, "saysay", Sampling(9), limit=2).finish is Finish.CONTEXT
    assert judged(checker, spoken, "saysay", Sampling(2), limit=2).finish is Finish.LENGTH
