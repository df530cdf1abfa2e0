"""Servers: search over MCP, and the agent as an OpenAI-compatible model."""
