"""The agent: episodes of reasoning, tool calls and an answer, with a record of every token."""
