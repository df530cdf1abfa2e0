"""Questions made from the sentences of a corpus by rules of form: what stood in a sentence is asked for."""
