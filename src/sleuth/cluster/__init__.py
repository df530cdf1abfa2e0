"""Training on a Ray cluster (trainer ranks, rollout workers, retriever replicas), and its simulation."""
