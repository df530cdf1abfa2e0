"""Evaluation: answer benchmark questions, score the answers, and report means and paired differences."""
