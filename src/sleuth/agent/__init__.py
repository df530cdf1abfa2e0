"""The agent: it thinks, searches, reads and answers, and keeps account of every token."""
