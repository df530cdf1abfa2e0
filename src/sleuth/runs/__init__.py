"""Run folders: what a run writes, so that it is whole or not there, and how it is read again."""
