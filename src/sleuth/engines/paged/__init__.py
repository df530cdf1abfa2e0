"""The embedded engine: continuous batching over cached keys and values, in the trainer's own process."""
