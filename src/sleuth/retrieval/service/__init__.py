"""Retrieval over HTTP: the server and its clients."""
