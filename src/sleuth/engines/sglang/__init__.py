"""The engine for SGLang servers, either already running or started as child processes."""
