"""Which tokens may end a row, and why a row ends."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.row import Row
from sleuth.engines.paged.watch import Watch
from sleuth.errors import EngineFailure
from sleuth.model.tokens import Tokens

PIECES = ("<end>", "say", "</", "search", ">", "</search>", "!")


@pytest.fixture(scope="module")
def write_answer(spelled: Callable[[Sequence[str]], Tokens]) -> Tokens:
    return spelled(PIECES)


@pytest.fixture(scope="module")
def model(reciter: Callable[..., PreTrainedModel], spoken: Tokens) -> PreTrainedModel:
    return reciter(spoken, [])


@pytest.fixture
def watch(model: PreTrainedModel, spoken: Tokens) -> Watch:
    return Watch(model, spoken)


def ending(watch: Watch, stops: tuple[str, ...]) -> set[str]:
    """The pieces after which a row with these stops may be over."""
    kind = watch.kind(stops)
    may = watch.may_end(np.full(len(PIECES), kind), np.arange(len(PIECES)))
    return {piece for piece, ends in zip(PIECES, may, strict=True) if ends}


def judged(watch: Watch, spoken: Tokens, said: str, sampling: Sampling, limit: int | None = None) -> Row:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Completion] = loop.create_future()
    loop.close()
    ids = spoken.encode(said)
    row = Row([1, *ids], 1, sampling, limit or sampling.max_tokens, 0, (0, 0), None, None, future)
    row.logprobs = [0.0] * len(ids)
    watch.judge(row)
    return row


def test_only_ends_and_what_can_complete_a_stop_are_looked_at(watch: Watch) -> None:
    assert ending(watch, ()) == {"<end>"}
    assert ending(watch, ("</search>",)) == {"<end>", ">", "</search>"}
    assert ending(watch, ("</search>", "!")) == {"<end>", ">", "</search>", "!"}


def test_a_model_without_a_tokenizer_has_ends_and_no_stops(model: PreTrainedModel) -> None:
    watch = Watch(model, None)
    assert ending(watch, ()) == {"<end>"}
    with pytest.raises(EngineFailure, match="stop strings without a tokenizer; give the engine"):
        watch.kind(("!",))


def test_requests_alike_share_a_row_of_the_table(watch: Watch) -> None:
    assert watch.kind(("!",)) == watch.kind(("!",)) != watch.kind((">",))


def test_rows_of_the_table_are_used_again_when_nobody_needs_them(watch: Watch) -> None:
    kinds = set()
    kept = watch.kind(("say",))
    for number in range(50):
        kinds.add(kind := watch.kind((f"{number}!",)))
        watch.leave(kind)
    assert len(kinds) == 1
    assert kept not in kinds
    assert ending(watch, ("say",)) == {"<end>", "say"}


def test_a_row_of_the_table_is_kept_while_one_request_needs_it(watch: Watch) -> None:
    first, second = watch.kind(("!",)), watch.kind(("!",))
    watch.leave(first)
    assert watch.kind((">",)) != second
    watch.leave(second)
    assert watch.kind(("say",)) == second


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
def test_why_a_row_ends(watch: Watch, spoken: Tokens, said: str, finish: Finish | None, stop: str | None) -> None:
    row = judged(watch, spoken, said, Sampling(4, stops=("</search>",)))
    assert (row.finish, row.stop) == (finish, stop)


def test_the_context_ends_a_row_before_its_limit(watch: Watch, spoken: Tokens) -> None:
    assert judged(watch, spoken, "saysay", Sampling(9), limit=2).finish is Finish.CONTEXT
    assert judged(watch, spoken, "saysay", Sampling(2), limit=2).finish is Finish.LENGTH
