"""HTTP code shared by all clients and servers: retries, connections, limits, authentication, problem responses."""
