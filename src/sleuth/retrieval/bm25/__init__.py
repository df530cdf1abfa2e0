"""Search by words: BM25 over an inverted index."""
