"""Where metrics go besides metrics.jsonl: one file for each library, loaded only when it is asked for."""
