"""Access control, links, security headers and hostile files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sleuth.evaluate.folder import EvaluationFolder
from sleuth.runs.json_files import write_rows
from sleuth.runs.run import Run
from sleuth.view.jsonl import MAX_ROW
from sleuth.view.server import MEDIA_TYPES, STATIC

Evaluate = Callable[..., EvaluationFolder]

SECRET = "the secret of another folder"
Asking = Callable[..., Any]

NAMES = [
    "../outside",
    "runs/../outside",
    "runs/first/../../outside",
    "..%2foutside",
    "%2e%2e%2foutside",
    "..\\outside",
    "runs/first/..",
    "/etc/passwd",
    "//etc/passwd",
    "file:///etc/passwd",
    "runs/first\x00",
    "runs/./first",
    "runs//first",
    "",
    ".",
    "runs",
]
PATHS = ["/api/run", "/api/metrics", "/api/trajectories", "/api/questions"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A run outside the viewed folder."""
    made = Run.create(tmp_path / "outside", {"secret": SECRET})
    made.append_metrics(1, {"note": SECRET})
    made.write_trajectories(1, [{"question": SECRET}])
    return made.path


@pytest.mark.parametrize("path", PATHS)
def test_ids_cannot_escape_the_roots(path: str, run: Run, outside: Path, ask: Callable[..., Asking]) -> None:
    """Ids are looked up and never used as paths."""
    get = ask("runs")
    for name in NAMES:
        for kind in ("run", "evaluation"):
            found = get(path, **{kind: name})
            assert found.status_code in (400, 404), name
            assert SECRET not in found.text


def test_static_files_cannot_escape_their_folder(run: Run, ask: Callable[..., Asking]) -> None:
    get = ask("runs")
    for name in [*NAMES, "../server.py", "%2e%2e/server.py", "pages/../../server.py", "..%5cserver.py"]:
        found = get(f"/static/{name}".replace("\x00", "%00"))
        assert found.status_code == 404, name
        assert "FastAPI" not in found.text


def test_all_static_files_have_a_media_type(run: Run, ask: Callable[..., Asking]) -> None:
    get = ask("runs")
    files = [path for path in STATIC.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert files
    assert {path.suffix for path in files} <= MEDIA_TYPES.keys()
    for path in files:
        found = get(f"/static/{path.relative_to(STATIC).as_posix()}")
        assert (found.status_code, found.content) == (200, path.read_bytes())
        assert found.headers["content-type"] == MEDIA_TYPES[path.suffix]


def test_links_out_of_the_root_are_reported(run: Run, outside: Path, ask: Callable[..., Asking]) -> None:
    (run.path.parent / "away").symlink_to(outside)
    (run.path.parent / "up").symlink_to(outside.parent)
    get = ask("runs")
    found = get("/api/library")
    assert [each["id"] for each in found.json()["runs"]] == ["runs/first"]
    assert [each["id"] for each in found.json()["broken"]] == ["runs/away", "runs/up"]
    assert "outside" not in found.text
    assert get("/api/run", run="runs/away").status_code == 404
    assert get("/api/run", run="runs/up/outside").status_code == 404


def test_linked_manifest_is_reported(run: Run, outside: Path, ask: Callable[..., Asking]) -> None:
    other = run.path.parent / "other"
    other.mkdir()
    (other / "manifest.json").symlink_to(outside / "manifest.json")
    found = ask("runs")("/api/library").json()
    assert [each["id"] for each in found["runs"]] == ["runs/first"]
    assert [each["id"] for each in found["broken"]] == ["runs/other"]
    assert "leaves the viewed folder" in found["broken"][0]["detail"]


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "events.jsonl",
        "summary.json",
        "parity.json",
        "best.json",
        "trajectories",
        "trajectories/step-2.jsonl",
        "trajectories/step-2.offsets",
        "trajectories/step-2.learned.jsonl",
        "checkpoints",
        "checkpoints/step-2/tokenizer.json",
    ],
)
def test_links_inside_a_run_are_not_followed(name: str, run: Run, tmp_path: Path, ask: Callable[..., Asking]) -> None:
    run.write_token_log(2, [{"advantage": SECRET, "ratio": SECRET}] * 4)
    target, link = tmp_path / "elsewhere", run.path / name
    if link.is_dir():
        shutil.copytree(link, target)
        shutil.rmtree(link)
    elif link.exists():
        target.write_bytes(link.read_bytes().replace(b"Ada", b"XYZ"))
        link.unlink()
    else:
        target.write_text(f'{{"step": 1, "note": "{SECRET}"}}\n')
    link.symlink_to(target)
    get = ask("runs")
    answers = [
        get(path, run="runs/first", **parameters)
        for path, parameters in (
            ("/api/run", {}),
            ("/api/metrics", {}),
            ("/api/trajectories", {"step_from": 2, "step_to": 2}),
            ("/api/trajectories", {"step_from": 2, "step_to": 2, "reward_min": 0.5}),
            ("/api/trajectory", {"at": "2.0"}),
            ("/api/group", {"step": 2, "group": 2}),
            ("/api/questions", {}),
        )
    ]
    for answer in answers:
        assert answer.status_code in (200, 404), answer.text
        assert "XYZ" not in answer.text
        assert SECRET not in answer.text or name != "trajectories/step-2.learned.jsonl"
    assert any(answer.status_code == 200 for answer in answers)
    if name == "trajectories":
        assert answers[0].json()["steps"] == []
    if name.endswith("tokenizer.json") or name == "checkpoints":
        assert answers[0].json()["tokenizer"] is False


def test_linked_results_are_not_compared(evaluate: Evaluate, tmp_path: Path, ask: Callable[..., Asking]) -> None:
    first, _ = evaluate("a", ["Ada"]), evaluate("b", ["Bob"])
    marks = first.path / "marks.jsonl"
    marks.rename(tmp_path / "marks.jsonl")
    marks.symlink_to(tmp_path / "marks.jsonl")
    found = ask("evaluations")("/api/compare", first="evaluations/a", second="evaluations/b")
    assert found.status_code == 400
    assert "marks.jsonl" in found.json()["detail"]


def test_a_named_pipe_does_not_block(run: Run, ask: Callable[..., Asking]) -> None:
    (run.path / "summary.json").unlink(missing_ok=True)
    os.mkfifo(run.path / "summary.json")
    assert ask("runs")("/api/run", run="runs/first").json()["summary"] is None


def test_responses_are_json_with_nosniff(run: Run, ask: Callable[..., Asking]) -> None:
    write_rows(run.trajectories(5), [{"question_id": "<script>", "stop": "answered", "group": 0, "turns": []}])
    found = ask("runs")("/api/trajectories", run="runs/first", step_from=5)
    assert found.json()["rows"][0]["question_id"] == "<script>"
    assert found.headers["content-type"] == "application/json"
    assert found.headers["x-content-type-options"] == "nosniff"


def test_content_security_policy(run: Run, ask: Callable[..., Asking]) -> None:
    get = ask("runs")
    for path in ("/", "/plotly.min.js", "/theme.css", "/api/library", "/nowhere", "/static/nothing", "/healthz"):
        policy = get(path).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["connect-src"] == "'self'"
        assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert "http" not in policy


def test_plotly_script(run: Run, ask: Callable[..., Asking]) -> None:
    get = ask("runs")
    found = get("/plotly.min.js")
    assert found.headers["content-type"].startswith("text/javascript")
    assert len(found.content) > 1_000_000
    again = get("/plotly.min.js", headers={"if-none-match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_unknown_host_is_refused(run: Run, ask: Callable[..., Asking]) -> None:
    get = ask("runs", host="evil.example")
    for path in ("/", "/api/library", "/plotly.min.js", "/healthz"):
        found = get(path)
        assert found.status_code == 421
        assert "--allow-host" in found.json()["detail"]


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_cross_site_requests_are_refused(site: str, status: int, run: Run, ask: Callable[..., Asking]) -> None:
    assert ask("runs")("/api/library", headers={"sec-fetch-site": site}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"), [("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:8090", 200)]
)
def test_foreign_origin_is_refused(origin: str, status: int, run: Run, ask: Callable[..., Asking]) -> None:
    assert ask("runs")("/api/library", headers={"Origin": origin}).status_code == status


def test_viewed_folders_are_not_written(run: Run, ask: Callable[..., Asking], tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    get = ask("runs", cache=tmp_path / "cache")
    for path in PATHS:
        assert get(path, run="runs/first").status_code == 200
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def grown(path: Path, size: int) -> Path:
    """Append sparse zero bytes to a file."""
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + size)
    return path


BAD: dict[str, Callable[[Path], object]] = {
    "manifest of 200 MiB": lambda folder: grown(folder / "manifest.json", 200 << 20),
    "deep manifest": lambda folder: (folder / "manifest.json").write_text('{"kind": ' + deep(100_000) + "}"),
    "deep policy": lambda folder: (folder / "manifest.json").write_text(
        '{"kind": "run", "format": 1, "config": {"model": {"policy": ' + deep(500) + "}}}"
    ),
    "list for a config": lambda folder: (folder / "manifest.json").write_text(
        '{"kind": "run", "format": 1, "config": [1]}'
    ),
    "number for sets": lambda folder: [
        (folder / "manifest.json").write_text('{"kind": "evaluation", "format": 1}'),
        (folder / "results.json").write_text('{"sets": 5}'),
    ],
    "deep results": lambda folder: [
        (folder / "manifest.json").write_text('{"kind": "evaluation", "format": 1}'),
        (folder / "results.json").write_text('{"em": ' + deep(100_000) + "}"),
    ],
    "results of 200 MiB": lambda folder: [
        (folder / "manifest.json").write_text('{"kind": "evaluation", "format": 1}'),
        grown(folder / "results.json", 200 << 20),
    ],
    "deep metrics": lambda folder: (folder / "metrics.jsonl").write_text('{"loss": ' + deep(600) + "}\n"),
    "metrics row of 200 MiB": lambda folder: grown(folder / "metrics.jsonl", 200 << 20),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_a_bad_folder_does_not_affect_others(
    spoil: Callable[[Path], object], run: Run, ask: Callable[..., Asking]
) -> None:
    bad = Run.create(run.path.parent / "bad", {"config": {}})
    spoil(bad.path)
    get = ask("runs")
    found = get("/api/library")
    assert found.status_code == 200
    assert [each["name"] for each in found.json()["runs"] if each["name"] != "bad"] == [run.path.name]
    assert get("/api/run", run=f"runs/{run.path.name}").status_code == 200
    for path in ("/api/run", "/api/metrics"):
        assert get(path, run="runs/bad").status_code in (200, 404, 503)


@pytest.mark.parametrize("row", ['{"turns": ' + deep(5_000) + "}", "x" * (MAX_ROW + 10)], ids=["deep", "long"])
def test_a_bad_row_does_not_affect_others(row: str, run: Run, ask: Callable[..., Asking]) -> None:
    path = run.trajectories(1)
    path.with_suffix(".offsets").unlink()
    whole = path.read_bytes()
    path.write_bytes(row.encode() + b"\n" + whole)
    get = ask("runs")
    name = f"runs/{run.path.name}"
    listed = get("/api/trajectories", run=name, limit=200)
    assert listed.status_code == 200
    assert get("/api/trajectory", run=name, at="1.0").status_code == 503
    assert get("/api/trajectory", run=name, at="1.1").status_code == 200


def test_credentials_in_manifests_are_redacted(run: Run, ask: Callable[..., Asking]) -> None:
    manifest = {**run.manifest(), "config": {"retrieval": {"service": {"proxy": "http://ada:secret@host:3128"}}}}
    run.write_json("manifest.json", manifest)
    found = ask("runs")("/api/run", run=f"runs/{run.path.name}")
    assert "secret" not in found.text
    assert "http://***@host:3128" in found.text
