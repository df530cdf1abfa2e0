"""The server of a rollout worker: the head that its weights update, and the end of the worker when it is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.cluster.worker_engine import OwnServer, find_tied_embedding
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.errors import EngineFailure
from sleuth.model.tokens import Tokens


@pytest.mark.parametrize("tied", [True, False])
def test_the_embedding_of_a_tied_head_is_found_without_loading_weights(
    tiny: Callable[..., PreTrainedModel], tmp_path: Path, tied: bool
) -> None:
    model = tiny("llama")
    model.config.tie_word_embeddings = tied
    model.config.save_pretrained(tmp_path)
    assert find_tied_embedding(tmp_path) == ("model.embed_tokens.weight" if tied else None)


def test_a_server_that_does_not_answer_is_lost(tokens: Tokens) -> None:
    engine = VllmEngine(["http://127.0.0.1:9"], tokens, context=8)
    own = OwnServer(engine, tokens, None, torch.device("cpu"), EngineStats())
    assert own.is_alive
    with pytest.raises(EngineFailure, match="no vLLM server is left"):
        engine.load(Path("model"))
    assert not own.is_alive
