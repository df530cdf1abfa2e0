"""Reproducing published systems: train and evaluate a recipe, and compare with the published figures."""
