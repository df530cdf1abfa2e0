"""The embedded engine: continuous batching over a paged key/value cache, sharing the policy's parameters."""
