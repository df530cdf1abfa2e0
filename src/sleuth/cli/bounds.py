"""Upper bounds of options, as those of settings: a typing error must not use up the memory of the machine."""

from sleuth.config.section import MAX_INT as MAX_INT

SEED = 2**64 - 1
MANY = 1_000_000  # of what is held in memory at once
TOKENS = 2**24
HITS = 10_000
PROCESSES = 1_024
