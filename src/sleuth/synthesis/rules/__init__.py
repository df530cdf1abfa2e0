"""Questions from ordinary documents by rules: entries, definitions, values, key-value lines and tables."""
