"""Corpora and questions: sources, passages, chunking, question files and public data sets."""
