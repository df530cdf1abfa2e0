"""The agent as an OpenAI-compatible server, with a playground page."""
