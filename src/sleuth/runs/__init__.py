"""Run folders and the files in them: atomic writes, JSON rows, checksums, locks, and signals."""
