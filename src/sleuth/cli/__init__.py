"""The command line: main, and one small file per command."""
