"""The Ray backend: server and client actors, scheduling, placement and the session."""
