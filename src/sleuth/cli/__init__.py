"""The command line: the entry point, and one file per command."""
