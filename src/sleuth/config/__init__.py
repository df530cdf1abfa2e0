"""Every knob of a training run, declared once, a table a file; strict and frozen."""
