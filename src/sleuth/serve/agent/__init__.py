"""The agent as a service that speaks as OpenAI's does, with a page to try it."""
