"""Cold start: demonstrations, rejection sampling and supervised fine-tuning."""
