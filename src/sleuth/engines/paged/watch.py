"""The tokens after which a row may be at its end, as a table that a whole step is looked up in at once.

Suffixes: K kinds of request (by their stop strings), V vocabulary.
"""

from collections import Counter
from functools import lru_cache

import numpy as np
from transformers import PreTrainedModel

from sleuth.engines.base import Finish
from sleuth.engines.paged.row import Row
from sleuth.errors import EngineFailure
from sleuth.model.tokens import StopStrings, Tokens


class Watch:
    """Ends rows: by a stop string, the end of the text, or their limit."""

    def __init__(self, model: PreTrainedModel, tokens: Tokens | None) -> None:
        self._stops = StopStrings(tokens) if tokens is not None else None
        self._ends = _end_ids(model, tokens)
        self._known = model.config.vocab_size
        self._kinds: dict[tuple[str, ...], int] = {}
        self._users: Counter[int] = Counter()
        self._ends_KV = np.zeros((0, self._known), dtype=bool)
        self._row_V = lru_cache(maxsize=64)(self._row)

    def kind(self, stops: tuple[str, ...]) -> int:
        """The number of the table's row for these stops; given back by `leave`."""
        if stops and self._stops is None:
            raise EngineFailure("stop strings without a tokenizer; give the engine the model's tokens")
        if stops not in self._kinds:
            self._kinds[stops] = self._enter(self._row_V(stops))
        kind = self._kinds[stops]
        self._users[kind] += 1
        return kind

    def leave(self, kind: int) -> None:
        """One request less: rows of the table that nobody uses are used again, so that it does not grow for ever."""
        self._users[kind] -= 1
        if not self._users[kind]:
            del self._users[kind]
            self._kinds = {stops: each for stops, each in self._kinds.items() if each != kind}

    def may_end(self, kinds_M: np.ndarray, tokens_M: np.ndarray) -> np.ndarray:
        """Which of the newest tokens may be the last of their rows."""
        may: np.ndarray = self._ends_KV[kinds_M, tokens_M]
        return may

    def judge(self, row: Row) -> None:
        """Ends a row whose newest token is its last."""
        if self._stops is not None:
            row.stop = self._stops.match(row.ids, row.given, row.sampling.stops)
        if row.stop is not None:
            row.finish = Finish.STOP
        elif row.ids[-1] in self._ends:
            row.finish = Finish.END
        elif len(row.logprobs) == row.sampling.max_tokens:
            row.finish = Finish.LENGTH
        elif len(row.logprobs) == row.limit:
            row.finish = Finish.CONTEXT

    def _enter(self, row_V: np.ndarray) -> int:
        free = next((kind for kind in range(len(self._ends_KV)) if kind not in self._users), None)
        if free is None:
            self._ends_KV = np.concatenate([self._ends_KV, row_V[None]])
            return len(self._ends_KV) - 1
        # A new table, since a step may be reading this one.
        self._ends_KV = self._ends_KV.copy()
        self._ends_KV[free] = row_V
        return free

    def _row(self, stops: tuple[str, ...]) -> np.ndarray:
        ending = self._ends | (self._stops.candidate_ids(stops) if self._stops is not None else frozenset())
        row_V = np.zeros(self._known, dtype=bool)
        row_V[[token for token in ending if token < self._known]] = True
        return row_V


def _end_ids(model: PreTrainedModel, tokens: Tokens | None) -> frozenset[int]:
    """The ids that end a text: those the model's generation settings name, and the tokenizer's own."""
    named = getattr(model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    own = tokens.eos_id if tokens is not None else None
    return frozenset(token for token in (*listed, own) if isinstance(token, int))
