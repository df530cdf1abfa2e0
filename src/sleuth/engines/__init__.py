"""Engines turn token ids into sampled token ids with their logprobs."""
