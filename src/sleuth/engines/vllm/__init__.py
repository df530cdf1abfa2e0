"""The engine that speaks to vLLM servers: at addresses, or started and stopped by us."""
