"""Lexical search: BM25 over an inverted index."""
