"""Public question sets, corpora and indexes: download, merging and preparation."""
