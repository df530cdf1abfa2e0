"""Questions made from documents: the generated world, and cloze rules over a corpus."""
