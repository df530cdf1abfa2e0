"""Encoders: families, settings, and vectors equal to plain transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from sleuth.config.retrieval import EncoderSettings, Pooling
from sleuth.errors import ConfigError, InputError
from sleuth.retrieval.dense.encoder import Encoder, Shape, batches
from sleuth.retrieval.dense.encoder_config import BGE_CHINESE, BGE_ENGLISH, encoder_settings, fingerprint, model_folder
from sleuth.retrieval.dense.exact import devices

TEXTS = [
    '"Oslo"\nOslo is the capital of Norway.',
    "who wrote The Old Man and the Sea?",
    "",
    "é ☃ 北京 \U0001f600",
    "[SEP] a text that names a token [MASK]",
    *(" ".join(["Wikipedia", "article", "about", "rivers"] * count) for count in (1, 3, 7, 70)),
]


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return Encoder.load(encoder_settings("minilm"), "cpu")


@pytest.fixture(scope="module")
def small(small_model: Callable[..., Path]) -> Path:
    return small_model()


def plain(
    folder: Path, texts: list[str], pooling: Pooling, *, normalise: bool, tokens: int = 256
) -> NDArray[np.float32]:
    """Each text alone through transformers, without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in texts:
            states = model(
                **tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens)
            ).last_hidden_state[0]
            pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
            rows.append(pooled / pooled.norm() if normalise else pooled)
    return torch.stack(rows).numpy()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("minilm", ("mean", True, "", "")),
        ("sentence-transformers/all-MiniLM-L6-v2", ("mean", True, "", "")),
        ("sentence-transformers/all-mpnet-base-v2", ("mean", True, "", "")),
        ("intfloat/e5-base-v2", ("mean", True, "query: ", "passage: ")),
        ("intfloat/multilingual-e5-large", ("mean", True, "query: ", "passage: ")),
        ("models/e5-small/", ("mean", True, "query: ", "passage: ")),
        ("hub/models--intfloat--e5-base-v2/snapshots/1c644c92", ("mean", True, "query: ", "passage: ")),
        ("BAAI/bge-base-en-v1.5", ("cls", True, BGE_ENGLISH, "")),
        ("BAAI/bge-large-zh", ("cls", True, BGE_CHINESE, "")),
        ("BAAI/bge-m3", ("cls", True, "", "")),
        ("thenlper/gte-base", ("mean", True, "", "")),
        ("Alibaba-NLP/gte-modernbert-base", ("cls", True, "", "")),
        ("sentence-transformers/multi-qa-mpnet-base-cos-v1", ("mean", True, "", "")),
        ("sentence-transformers/multi-qa-mpnet-base-dot-v1", ("cls", False, "", "")),
        ("facebook/contriever-msmarco", ("mean", False, "", "")),
    ],
)
def test_families_are_known_by_name(model: str, expected: tuple[str, bool, str, str]) -> None:
    found = encoder_settings(model)
    assert (found.pooling, found.normalise, found.query_prefix, found.passage_prefix) == expected
    assert (found.model, found.query_tokens, found.passage_tokens) == (model, 256, 256)


def test_what_is_stated_wins_over_the_family() -> None:
    found = encoder_settings("intfloat/e5-base-v2", query_prefix="", pooling="cls", normalise=False, passage_tokens=180)
    assert (found.query_prefix, found.passage_prefix, found.pooling) == ("", "passage: ", "cls")
    assert (found.normalise, found.query_tokens, found.passage_tokens) == (False, 256, 180)


def test_model_of_no_family_says_itself_what_it_wants(tmp_path: Path) -> None:
    folder = tmp_path / "e5-base-v2-tuned"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    saved = {"prompts": {"query": "ask: ", "document": "read: "}, "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(saved))
    found = encoder_settings(str(folder))
    assert (found.pooling, found.normalise, found.query_prefix, found.passage_prefix) == (
        "cls",
        False,
        "ask: ",
        "read: ",
    )
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    assert encoder_settings(str(folder)).normalise


@pytest.mark.parametrize(("written", "pooling"), [("lasttoken", "last"), (["mean"], "mean")])
def test_newer_files_name_the_pooling(tmp_path: Path, written: object, pooling: str) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": written}))
    assert encoder_settings(str(tmp_path)).pooling == pooling


@pytest.mark.parametrize("written", [None, {"pooling_mode": "max"}, {"pooling_mode": ["cls", "mean"]}, {}])
def test_model_whose_pooling_nobody_knows_is_rejected(tmp_path: Path, written: object) -> None:
    if written is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling/config.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=r"state pooling \(mean, cls or last\)"):
        encoder_settings(str(tmp_path))
    assert encoder_settings(str(tmp_path), pooling="mean").pooling == "mean"


def test_settings_of_a_wrong_value_are_named() -> None:
    with pytest.raises(ConfigError, match="passage_tokens of the encoder 'minilm' is 0"):
        encoder_settings("minilm", passage_tokens=0)


def test_model_that_cannot_be_fetched_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="'nobody/nothing', which is not a local folder") as caught:
        model_folder("nobody/nothing")
    assert "\n" not in str(caught.value)
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "absent"):
        with pytest.raises(InputError, match="is not a model folder"):
            model_folder(str(wrong))


def test_vectors_are_those_of_sentence_transformers(minilm: Encoder) -> None:
    theirs = SentenceTransformer(str(model_folder("minilm")), device="cpu").encode(TEXTS, show_progress_bar=False)
    assert minilm.dimensions == theirs.shape[1] == 384
    np.testing.assert_allclose(minilm.encode_queries(TEXTS), theirs, atol=2e-6)
    np.testing.assert_allclose(minilm.encode_passages(TEXTS), theirs, atol=2e-4)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_settings_decide_the_pooling(small: Path, pooling: Pooling, normalise: bool) -> None:
    encoder = Encoder.load(encoder_settings(str(small), pooling=pooling, normalise=normalise, query_tokens=100), "cpu")
    expected = plain(small, TEXTS, pooling, normalise=normalise, tokens=100)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-5)


def test_prefixes_and_cuts_are_those_of_queries_and_passages(small: Path) -> None:
    asked = encoder_settings(
        str(small),
        pooling="mean",
        query_prefix="query: ",
        passage_prefix="passage: ",
        query_tokens=9,
        passage_tokens=12,
    )
    encoder = Encoder.load(asked, "cpu")
    texts = [TEXTS[0], "word " * 40]
    queries = plain(small, [f"query: {text}" for text in texts], "mean", normalise=True, tokens=9)
    passages = plain(small, [f"passage: {text}" for text in texts], "mean", normalise=True, tokens=12)
    np.testing.assert_allclose(encoder.encode_queries(texts), queries, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(texts), passages, atol=1e-3)


def test_query_has_the_same_bits_alone_and_among_others(minilm: Encoder) -> None:
    short = TEXTS[:-1]
    alone = np.concatenate([minilm.encode_queries([text]) for text in short])
    assert np.array_equal(minilm.encode_queries(short * 3), np.tile(alone, (3, 1)))
    assert np.array_equal(minilm.encode_queries(short[::-1])[::-1], alone)


def test_several_devices_give_what_one_gives(small: Path) -> None:
    texts = [text * times for text in TEXTS for times in (1, 5, 9)]
    one, two = (Encoder.load(encoder_settings(str(small), pooling="mean"), place) for place in ("cpu", "cpu,cpu"))
    heard: list[int] = []
    assert np.array_equal(two.encode_passages(texts, heard.append), one.encode_passages(texts))
    assert sum(heard) == len(texts)


def test_any_text_has_a_vector(minilm: Encoder) -> None:
    odd = ["half a pair \ud83d", "\x00", "   ", "x" * 1_000_000]
    assert np.isfinite(minilm.encode_passages(odd)).all()
    assert minilm.encode_queries([]).shape == minilm.encode_passages([]).shape == (0, 384)


def test_loading_says_nothing(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Encoder.load(encoder_settings(str(small), pooling="mean"), "cpu").encode_passages(TEXTS)
    assert capfd.readouterr() == ("", "")


def test_fingerprint_is_that_of_the_weights(small: Path, small_model: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "elsewhere")
    assert fingerprint(tmp_path / "elsewhere") == fingerprint(small) != fingerprint(small_model(seed=1))
    with pytest.raises(InputError, match="has no weights"):
        fingerprint(tmp_path)


def altered(small: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> EncoderSettings:
    """The settings of a copy whose weights are changed."""
    shutil.copytree(small, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return encoder_settings(str(folder), pooling="mean")


def test_missing_weights_are_rejected(small: Path, tmp_path: Path) -> None:
    wrong = altered(small, tmp_path / "copy", lambda weights: weights.pop("encoder.layer.1.output.dense.weight"))
    with pytest.raises(InputError, match=r"lacks 1 weights, .*encoder\.layer\.1\.output\.dense\.weight"):
        Encoder.load(wrong, "cpu")
    unused = altered(small, tmp_path / "other", lambda weights: weights.pop("pooler.dense.weight"))
    assert Encoder.load(unused, "cpu").dimensions == 32


def test_numbers_that_are_not_finite_are_an_error(small: Path, tmp_path: Path) -> None:
    wrong = altered(
        small, tmp_path / "copy", lambda weights: weights["encoder.layer.1.output.dense.weight"].fill_(np.nan)
    )
    with pytest.raises(InputError, match="non-finite"):
        Encoder.load(wrong, "cpu").encode_queries(["a"])
    long = altered(
        small, tmp_path / "long", lambda weights: weights["encoder.layer.1.output.LayerNorm.bias"].fill_(1e5)
    )
    with pytest.raises(InputError, match="overflow half precision"):
        Encoder.load(long.model_copy(update={"normalise": False}), "cpu").encode_passages(["a"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("modules.json", '[{"type": "sentence_transformers.models.Dense"}]', "module Dense"),
        ("modules.json", "[", r"modules\.json"),
        ("config.json", "{}", "cannot load a model from"),
        ("model.safetensors", "cut short", "cannot load a model from"),
    ],
)
def test_folder_that_cannot_be_read_as_it_is_meant_is_rejected(
    small: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    folder = shutil.copytree(small, tmp_path / "copy")
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        Encoder.load(EncoderSettings(model=str(folder)), "cpu")
    assert "\n" not in str(caught.value)


def test_texts_longer_than_the_model_reads_are_rejected(small: Path) -> None:
    with pytest.raises(ConfigError, match=r"passage_tokens is 513, .* 512"):
        Encoder.load(encoder_settings(str(small), pooling="mean", passage_tokens=513), "cpu")


def test_device_that_is_not_there_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"device = 'cuda:99' .* cpu"):
        devices("cuda:99")
    assert devices("cpu, cpu") == ["cpu", "cpu"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 60), max_size=40),
    st.builds(Shape, step=st.integers(1, 40), tokens=st.integers(1, 200), full=st.booleans()),
)
def test_shape_of_a_text_is_decided_by_its_length(lengths: list[int], shape: Shape) -> None:
    planned = list(batches(lengths, 60, shape))
    assert sorted(place for batch in planned for place in batch.places) == list(range(len(lengths)))
    for batch in planned:
        alone = [next(batches([lengths[place]], 60, shape)) for place in batch.places]
        assert {each.width for each in alone} == {batch.width}
        assert {each.height for each in alone} == {batch.height if shape.full else 1}
        assert len({lengths[place] == batch.width for place in batch.places}) == 1
        assert max(lengths[place] for place in batch.places) <= batch.width <= 60
        assert len(batch.places) <= batch.height
        assert (batch.height - 1) * batch.width < shape.tokens


@pytest.mark.gpu
def test_gpus_give_the_vectors_of_cpus(minilm: Encoder) -> None:
    gpu = Encoder.load(encoder_settings("minilm"), "cuda:0")
    expected = minilm.encode_queries(TEXTS)
    assert ((gpu.encode_queries(TEXTS) * expected).sum(1) > 0.9995).all()
    assert ((gpu.encode_passages(TEXTS) * expected).sum(1) > 0.9995).all()
    alone = np.concatenate([gpu.encode_queries([text]) for text in TEXTS])
    assert np.array_equal(alone, gpu.encode_queries(TEXTS))
