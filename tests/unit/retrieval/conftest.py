"""Small encoders with seeded random weights, saved as folders, with the tokenizer of MiniLM."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Factory of folders with a small BERT; with labels it is a cross-encoder."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

    from sleuth.retrieval.dense.encoder_config import model_folder

    def make(seed: int = 0, labels: int = 0, classifier: float = 1.0) -> Path:
        folder = tmp_path_factory.mktemp("model")
        tokenizer = AutoTokenizer.from_pretrained(model_folder("minilm"))
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
        )
        config.num_labels = labels or 1
        model = BertForSequenceClassification(config) if labels else BertModel(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Large enough for texts to differ; `classifier` scales the head of a cross-encoder.
                parameter.normal_(0, 0.3) if "LayerNorm" not in name else None
                parameter.mul_(classifier if "classifier" in name else 1.0)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make
