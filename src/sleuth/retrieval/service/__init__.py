"""Search over HTTP: the server, and the client of any server."""
