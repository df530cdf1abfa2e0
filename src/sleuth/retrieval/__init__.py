"""Search: from a query to the passages that answer it."""
