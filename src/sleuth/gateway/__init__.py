"""An OpenAI-compatible endpoint for agents that were not written for Sleuth."""
