"""Doctor: checks the machine and the engine on it, and suggests remedies."""
