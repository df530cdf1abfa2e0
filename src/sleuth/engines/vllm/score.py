"""Logprobs of the whole distribution, for tokens drawn from a cut one: a server gives those of what was kept."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sleuth.engines.vllm.draft import Draft
from sleuth.engines.vllm.message import Piece, likeliest, scoring
from sleuth.engines.vllm.server import COMPLETIONS, Server
from sleuth.errors import EngineFailure


async def rescored(server: Server, model: str, draft: Draft, piece: Piece) -> Piece:
    """The piece that follows the draft: a request for each token, whose prompt the server has in its cache."""
    before, temperature = [*draft.given, *draft.ids], draft.sampling.temperature
    scores = (
        _score(server, model, [*before, *piece.ids[:place]], temperature, token)
        for place, token in enumerate(piece.ids)
    )
    return replace(piece, logprobs=tuple(await asyncio.gather(*scores)))


async def _score(server: Server, model: str, before: Sequence[int], temperature: float, token: int) -> float:
    found = likeliest(await server.ask("POST", COMPLETIONS, scoring(model, before, temperature, token)))
    if token not in found:
        raise EngineFailure(
            f"{server.address} cannot say how likely a token was before top_k, top_p or min_p; sample without these"
        )
    return found[token]
