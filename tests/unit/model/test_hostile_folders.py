"""A model folder brings weights, never code: whatever loads one runs none of its files, also where stdin says yes."""

import builtins
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sleuth.bench import shapes
from sleuth.config.retrieval import EncoderSettings
from sleuth.model import load
from sleuth.model.tokens import Tokens
from sleuth.retrieval.dense import encoder

CODE = """
open({mark!r}, "w").close()
from transformers import BertConfig as Config, BertForSequenceClassification as Scorer, BertModel as Model
from transformers import Qwen2ForCausalLM as Causal, Qwen2TokenizerFast as Tokenizer
"""
AUTO = {
    "AutoConfig": "hostile.Config",
    "AutoModel": "hostile.Model",
    "AutoModelForCausalLM": "hostile.Causal",
    "AutoModelForSequenceClassification": "hostile.Scorer",
    "AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"],
}
SETTINGS = EncoderSettings()
LOADERS: dict[str, Callable[[Path], object]] = {
    "policy": lambda folder: load.load(folder, torch.device("cpu"), torch.float32),
    "tokenizer": Tokens.load,
    "encoder": lambda folder: encoder.Encoder.load(SETTINGS.model_copy(update={"model": str(folder)}), "cpu"),
    "modules of an encoder": lambda folder: encoder._sentence_encoder(folder, SETTINGS, "cpu"),
    "reranker": lambda folder: encoder.load_cross_encoder(str(folder), "cpu"),
    "shape": shapes.of_folder,
}


@pytest.mark.parametrize("loads", LOADERS.values(), ids=LOADERS)
def test_code_of_a_folder_is_not_run(
    loads: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    folder, mark = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "hostile.py").write_text(CODE.format(mark=str(mark)))
    config = {"model_type": "hostile", "architectures": ["HostileForSequenceClassification"], "auto_map": AUTO}
    (folder / "config.json").write_text(json.dumps(config))
    written = {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": AUTO["AutoTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "hostile.Pooling"}]))
    try:
        with pytest.raises(Exception, match=r"custom code|cannot be served exactly|no class that is known"):
            loads(folder)
    finally:
        assert not mark.exists()  # before whatever was said: that the code ran is what matters
