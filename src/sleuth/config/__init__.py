"""The settings of a run, each declared once, and the recipes that set them."""
