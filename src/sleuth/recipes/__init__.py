"""Recipes that ship with the package: one TOML per published number, with the policy it starts from beside it."""
