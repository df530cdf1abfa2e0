"""The engine for vLLM servers, either already running or started as child processes."""
