"""Questions proposed by a language model from passages, and filtered by rules, the model itself and search."""
