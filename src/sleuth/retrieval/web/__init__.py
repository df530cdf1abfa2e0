"""Web search through commercial providers, and safe fetching of web pages."""
