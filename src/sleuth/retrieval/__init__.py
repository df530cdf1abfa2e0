"""Retrieval: search backends that turn queries into passages."""
