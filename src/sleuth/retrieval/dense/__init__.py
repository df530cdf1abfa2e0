"""Dense search: encoders, and exact and approximate nearest-neighbour search."""
