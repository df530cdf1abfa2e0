"""The search and the agent as services for other programs and for people."""
