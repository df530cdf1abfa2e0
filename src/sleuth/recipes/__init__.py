"""Recipes that ship with the package: one TOML file per published result, and the quickstart's policy."""
