"""RL algorithms as pure tensor functions; each module has a literal table of its variants."""
