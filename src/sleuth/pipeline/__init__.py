"""Commands that run other commands as stages, each in its own process, and continue where they were stopped."""
