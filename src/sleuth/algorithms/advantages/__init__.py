"""One file for each way to compare the rewards of a batch."""
