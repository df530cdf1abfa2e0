"""Speed, measured side by side with peers in one run."""
