"""One file for each policy loss."""
