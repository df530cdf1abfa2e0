"""Self-contained HTML pages: text, tables, charts, transcripts and whole reports."""
