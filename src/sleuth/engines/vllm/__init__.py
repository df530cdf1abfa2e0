"""The engine for vLLM servers, at given addresses or started by us."""
