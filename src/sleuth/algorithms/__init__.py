"""Advantages, losses and KL estimators: pure tensor functions, one file per idea."""
