"""Keeps libraries from talking over our own progress."""

import transformers


def quiet() -> None:
    """Silences the bars and notes of transformers; its errors are raised all the same."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
