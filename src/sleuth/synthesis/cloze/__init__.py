"""Cloze questions: rules turn the sentences of a corpus into questions about what they state."""
