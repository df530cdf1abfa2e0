"""Engines whose model runs in HTTP servers: what all kinds of servers share."""
