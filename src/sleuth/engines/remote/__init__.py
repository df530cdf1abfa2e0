"""A model behind an OpenAI-compatible address: words in, words out, for evaluation and asking only."""
