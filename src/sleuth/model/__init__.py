"""What engine and trainer share: loading, attention, head, tokens."""
