"""verl's tool configuration: convert the search tool of a YAML file to retrieval settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sleuth.errors import InputError

EXPECTED = "expected verl's `tools: - class_name: verl.tools.search_tool.SearchTool`"


def read_search_tool(file: Path) -> Mapping[str, Any]:
    """Return the entry of the search tool; raises InputError if the file has any other tool."""
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read the tools of {file} ({' '.join(str(error).split())}); {EXPECTED}") from error
    match tree:
        case {"tools": [{"class_name": str(name)} as entry]} if name.rpartition(".")[2] == "SearchTool":
            return {str(key): value for key, value in entry.items()}
        case {"tools": [*tools]}:
            names = [tool.get("class_name") if isinstance(tool, dict) else tool for tool in tools]
            raise InputError(f"{file} has the tools {names}; {EXPECTED} only; add other tools with import: or mcp:")
    raise InputError(f"{file} has no list of tools; {EXPECTED}")


def retrieval_settings(file: Path) -> dict[str, Any]:
    """Convert the search tool's `config` to a retrieval table."""
    config = read_search_tool(file).get("config") or {}
    url = config.get("retrieval_service_url")
    if not isinstance(url, str):
        raise InputError(f"{file} has no retrieval_service_url; expected the address of a retrieval server")
    # verl's rate_limit bounds the requests in flight, not those per second.
    in_flight = [config[name] for name in ("num_workers", "rate_limit") if name in config]
    service = {"concurrency": min(in_flight)} if in_flight else {}
    if "timeout" in config:
        service["deadline"] = float(config["timeout"])
    return {
        "index": url.removesuffix("/").removesuffix("/retrieve"),
        **({"k": config["topk"]} if "topk" in config else {}),
        **({"service": service} if service else {}),
    }
