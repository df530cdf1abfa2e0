"""From a folder of documents to a trained agent: the stages of `sleuth start`."""
