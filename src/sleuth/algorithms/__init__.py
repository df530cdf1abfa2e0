"""RL algorithms as pure tensor functions: one module per idea, each with a literal table of its variants."""
