"""Rewards: pure functions of a question and a trajectory."""
