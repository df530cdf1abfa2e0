"""Corpora and questions: where passages and what is asked of them come from."""
