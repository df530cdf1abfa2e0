"""The stamp of an evaluation: everything that answers depend on besides the model and the questions."""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.protocol import Protocol
from sleuth.config.agent import UNSEARCHED, AgentConfig
from sleuth.config.hooks import IMPORT, import_function, is_registered, source_hash
from sleuth.config.retrieval import RetrievalConfig, backend_of
from sleuth.config.tree import Config
from sleuth.credentials import token_from_env
from sleuth.retrieval.backends import STARTUP_TIMEOUT, backend_identity
from sleuth.runs.checksums import fingerprint

# Stamped separately, or without effect on answers.
EXCLUDED = ("protocol", "method", "prompt", "concurrency", "workers", "deadline")
NEWER = ("abstain", "tools", "tool_limits", "turns", "run", "command")  # settings that older evaluations do not have


def stamp_settings(config: Config, index: Path, protocol: Protocol) -> dict[str, Any]:
    """Stamp the method, protocol, prompt, limits, search and imported functions; files are hashed."""
    agent = config.agent
    grammar = digest(repr((protocol.instruction, protocol.functions, protocol.stops)))
    file, colon, prompt = agent.template.rpartition(":")
    # Newer settings are included only if set, so that older evaluations stay comparable.
    limits = {
        name: value
        for name, value in agent.model_dump().items()
        if name not in EXCLUDED and not (name in NEWER and value == AgentConfig.model_fields[name].default)
    }
    return {
        "method": agent.method,
        "protocol": {"name": agent.protocol, "sha256": grammar},
        "prompt": {
            "name": f"{Path(file).name}:{prompt}" if colon else prompt,
            "sha256": digest(prompts.load_template(agent.template)),
        },
        "limits": limits,
        "search": None if agent.method in UNSEARCHED else _stamp_search(config.retrieval, index),
        "imported": _stamp_imports(config),
    }


def stamp_weights(folder: Path) -> str:
    """Hash a model folder, excluding the trainer's state."""
    return digest(repr({file.name: fingerprint(file) for file in sorted(folder.iterdir()) if file.is_file()}))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _stamp_imports(config: Config) -> Mapping[str, str | None] | None:
    """Hash the modules of imported functions; a hash is None if the source is not available."""
    agent, retrieval = config.agent, config.retrieval
    settings = {"method": agent.method, "protocol": agent.protocol, **{tool: tool for tool in agent.tools}}
    settings |= {} if agent.run is None else {"run": agent.run}
    if agent.method not in UNSEARCHED and retrieval.replay is None:
        settings["index"] = str(retrieval.index)
    return {setting: _source_hash(name) for setting, name in settings.items() if name.startswith(IMPORT)} or None


def _source_hash(name: str) -> str | None:
    if is_registered(name):
        return source_hash(name)
    module = inspect.getmodule(import_function(name)) or sys.modules[name.removeprefix(IMPORT).rpartition(".")[0]]
    try:
        return digest(inspect.getsource(module))
    except (OSError, TypeError):  # compiled, or created at run time
        return None


def _stamp_search(retrieval: RetrievalConfig, index: Path) -> Mapping[str, Any]:
    pages = None if retrieval.pages is None else fingerprint(Path(retrieval.pages))
    if retrieval.replay is not None:
        return {"replay": fingerprint(Path(retrieval.replay)), "k": retrieval.k, "pages": pages}
    rerank = None if retrieval.rerank is None else {"by": retrieval.rerank, "depth": retrieval.rerank_depth}
    name, service = str(index) if retrieval.local else str(retrieval.index), retrieval.service
    stamp: dict[str, Any] = {"index": backend_identity(name)}
    if backend_of(name) == "server":
        from sleuth.retrieval.service.client import served_index

        token, patience = token_from_env(service.token_env), min(STARTUP_TIMEOUT, service.deadline)
        stamp |= {"by": "address", "server": served_index(name, token, service.proxy, patience=patience)}
    elif backend_of(name) == "web":
        web = {"language": service.language, "country": service.country, "pages": service.pages}
        stamp |= {"by": "name", "web": web}
    else:
        stamp["by"] = "name" if name.startswith(IMPORT) else "contents"
    return {**stamp, "k": retrieval.k, "rerank": rerank, "pages": pages}
