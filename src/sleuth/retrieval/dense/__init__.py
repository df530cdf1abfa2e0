"""Search by meaning: encoders, and exact and approximate search among vectors."""
