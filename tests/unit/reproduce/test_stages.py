"""The stages of `sleuth reproduce` for public and for local data."""

from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.errors import ConfigError
from sleuth.pipeline.stage import Stage
from sleuth.reproduce.stages import ReproduceOptions, Stages

RECIPE = "search-r1-grpo-qwen2.5-3b"
LOCAL = ReproduceOptions(RECIPE, train=("/d/a.jsonl",), test=("/d/b.jsonl", "/d/c.jsonl"), corpus="/d/corpus.jsonl")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLEUTH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def by_name(options: ReproduceOptions, folder: Path) -> dict[str, Stage]:
    return {stage.name: stage for stage in Stages(options, folder / "out").all()}


def test_public_data_is_downloaded_into_the_data_folder(tmp_path: Path, data: Path) -> None:
    stages = by_name(ReproduceOptions(RECIPE), tmp_path)
    assert list(stages) == [
        "training questions", "test questions", "corpus", "vectors", "index", "training", "evaluation", "comparison",
    ]  # fmt: skip
    assert stages["training questions"].outputs == (data / "search-r1" / "train",)
    assert stages["index"].outputs == (data / "wiki18-e5",)
    assert all(str(path) in stages["index"].words for name in ("corpus", "vectors") for path in stages[name].outputs)
    assert {"search-r1", "--data", str(data / "search-r1" / "test")} <= set(stages["evaluation"].words)
    assert sum(stage.space for stage in stages.values()) > 120e9


def test_downloads_may_be_deleted_after_the_import(tmp_path: Path, data: Path) -> None:
    stages = by_name(ReproduceOptions(RECIPE), tmp_path)
    assert not stages["vectors"].is_done
    (data / "wiki18-e5").mkdir(parents=True)
    assert stages["corpus"].is_done
    assert stages["vectors"].is_done


def test_local_files_need_no_download(tmp_path: Path) -> None:
    stages = by_name(LOCAL, tmp_path)
    assert list(stages) == ["index", "training", "evaluation", "comparison"]
    assert stages["index"].words[:3] == ("index", "build", "/d/corpus.jsonl")
    assert [word for word in stages["evaluation"].words if word.startswith("/d/")] == ["/d/b.jsonl", "/d/c.jsonl"]
    assert 'data.test=["/d/b.jsonl", "/d/c.jsonl"]' in stages["training"].words
    assert f'retrieval.index="{tmp_path / "out" / "index"}"' in stages["training"].words


@pytest.mark.parametrize("index", ["/d/index", "http://127.0.0.1:8000"])
def test_an_index_is_searched_as_it_is(index: str, tmp_path: Path) -> None:
    stages = by_name(replace(LOCAL, corpus=None, index=index), tmp_path)
    assert list(stages) == ["training", "evaluation", "comparison"]
    assert Stages(replace(LOCAL, corpus=None, index=index), tmp_path).config().retrieval.index == index


def test_an_interrupted_training_is_resumed_with_as_many_processes(tmp_path: Path) -> None:
    stage = by_name(replace(LOCAL, nproc=2), tmp_path)["training"]
    assert stage.command[:2] == ("train", RECIPE)
    assert stage.command[-2:] == ("--nproc", "2")
    (tmp_path / "out" / "run").mkdir(parents=True)
    (tmp_path / "out" / "run" / "manifest.json").touch()
    assert stage.command == ("train", "--resume", str(tmp_path / "out" / "run"), "--nproc", "2")


@pytest.mark.parametrize("key", ["data.train", "data.test", "data.corpus", "retrieval.index"])
def test_settings_that_have_an_option_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*--"):
        Stages(replace(LOCAL, settings=(f"{key}=x",)), tmp_path).all()


def test_options_identify_the_content_of_files(tmp_path: Path) -> None:
    for name in ("a", "b", "corpus"):
        (tmp_path / f"{name}.jsonl").write_text('{"id": "1", "contents": "x"}\n')
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "corpus")}
    options = replace(LOCAL, train=(paths["a"],), test=(paths["b"],), corpus=paths["corpus"])
    before = options.as_json()
    assert before == options.as_json()
    assert before["data"] is None
    (tmp_path / "a.jsonl").write_text('{"id": "2", "contents": "x"}\n')
    changed = options.as_json()
    assert [name for name in before if before[name] != changed[name]] == ["content"]
    (tmp_path / "corpus.jsonl").write_text('{"id": "33", "contents": "x"}\n')
    assert options.as_json()["content"]["corpus"] != changed["content"]["corpus"]
