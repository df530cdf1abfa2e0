"""Shared by every HTTP client and server: retries, connections, limits, authentication, problem responses."""
