"""Run manifest: settings, hashes of the input files, and the code versions that computed each part."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from sleuth.config import recipe
from sleuth.config.hooks import IMPORT, source_hash
from sleuth.config.tree import Config
from sleuth.credentials import redact
from sleuth.errors import InputError
from sleuth.evaluate.folder import flatten
from sleuth.retrieval import manifest as index_manifest
from sleuth.runs.checksums import code_hash, code_version, fingerprint
from sleuth.runs.run import Run, step_of

# Commands that create the files a recipe expects.
CREATED_BY = {
    "data.corpus": "sleuth data download",
    "data.train": "sleuth data prepare",
    "data.test": "sleuth data prepare",
    "retrieval.index": "sleuth index build",
}


def create_run(config: Config, folder: Path) -> Run:
    """Create a run folder with its manifest; raises before creating it if a file or model is missing."""
    versions = current_versions(config)
    manifest = {
        "config": recipe.resolved(config),
        **{name: versions[name] for name in ("code", "torch", "transformers")},
        "inputs": hash_inputs(config),
        "parts": [{"step": 0, **versions}],
    }
    return Run.create(folder, manifest)


def current_versions(config: Config) -> dict[str, Any]:
    """Return the versions of the code, the libraries and the imported functions."""
    values = {**flatten(recipe.resolved(config)), **{f"agent.tools: {tool}": tool for tool in config.agent.tools}}
    functions = {
        name: source_hash(value)
        for name, value in values.items()
        if isinstance(value, str) and value.startswith(IMPORT)
    }
    return {
        "code": code_version(),
        "code_sha256": code_hash(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "functions": functions,
    }


def require_same_inputs(run: Run, config: Config) -> None:
    """Raise InputError if an input file has changed since the run was started."""
    _, inputs = run.config_and_inputs()
    for setting, found in hash_inputs(config).items():
        if found != inputs.get(setting):
            raise InputError(
                f"{setting} = {found['path']} has changed since {run.path} was started; restore it, or start a new run"
            )


def changed_versions(run: Run, config: Config) -> tuple[Mapping[str, Any], str] | None:
    """Return the current versions and a notice if they differ from those last recorded for the run; otherwise None."""
    before, now = run.current_versions(), current_versions(config)
    different = [name for name in now if name in before and before[name] != now[name]]
    if not different:
        return None
    newest = run.latest()
    changes = "; ".join(_describe_change(name, before[name], now[name]) for name in different)
    return now, (
        f"from step {0 if newest is None else step_of(newest)} on this run uses other versions: {changes}; "
        "it may differ from an uninterrupted run, and manifest.json records each part"
    )


def _describe_change(name: str, before: Any, now: Any) -> str:
    if name == "functions":
        changed = sorted(setting for setting in {*before, *now} if before.get(setting) != now.get(setting))
        return f"the function of {', '.join(changed)} changed"
    return "the source of Sleuth changed" if name == "code_sha256" else f"{name} {before} is now {now}"


def record_resume(
    run: Run, config: Config, step: int, changes: Sequence[str], versions: Mapping[str, Any] | None
) -> None:
    """Record changed settings and versions when a run continues, and mark the run as unfinished."""
    run.remove_summary()
    if versions is not None:
        run.record_versions(step, versions)
    if changes:
        manifest = run.manifest()
        every = [*manifest.get("changes", []), *map(redact, changes)]
        run.write_json("manifest.json", {**manifest, "config": recipe.resolved(config), "changes": every})


def hash_inputs(config: Config) -> Mapping[str, Mapping[str, Any]]:
    """Return the input files and models of a run by setting, with their hashes."""
    retrieval = config.retrieval
    settings = {
        "data.corpus": [config.data.corpus],
        "data.train": config.data.files("train"),
        "data.test": config.data.files("test"),
        "retrieval.index": [retrieval.index if retrieval.local else None],
        "retrieval.replay": [retrieval.replay],
        "retrieval.pages": [retrieval.pages],
    }
    files: dict[str, Path] = {}
    for setting, values in settings.items():
        for number, path in enumerate(map(Path, filter(None, values))):
            if not path.exists():
                command = f"create it with {CREATED_BY[setting]} (docs/recipes.md), " if setting in CREATED_BY else ""
                raise InputError(
                    f"{setting} = {path} does not exist; {command}correct the recipe, or override it with --set"
                )
            files[f"{setting}[{number}]" if len(values) > 1 else setting] = path
    # Checked last, because a model may have to be downloaded.
    policies = {
        "model.policy": config.model.policy,
        "algorithm.critic.policy": config.algorithm.critic.policy,
        "algorithm.teacher.policy": config.algorithm.teacher.policy,
    }
    models = {name: (policy, recipe.resolve_policy(policy)) for name, policy in policies.items() if policy is not None}
    inputs = models | {name: (str(path), path) for name, path in files.items()}
    return {name: {"path": given, "sha256": _hash(name, path)} for name, (given, path) in inputs.items()}


def _hash(setting: str, path: Path) -> str:
    # The vectors of an index can take tens of gigabytes; its manifest has the hashes of its inputs.
    return index_manifest.fingerprint(path) if setting == "retrieval.index" else fingerprint(path)
