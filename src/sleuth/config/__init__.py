"""All settings of a run, declared once, and the recipes that set them."""
