"""Questions made from documents: the generated world, rules over a corpus, and a language model."""
