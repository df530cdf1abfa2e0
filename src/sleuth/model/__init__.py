"""The policy model, shared by engine and trainer: loading, tokenizer, attention, fused layers, output head."""
