"""Runs federations: the server's rounds, the processes that play clients' turns, checkpoints."""
