"""Federations: server rounds, client tasks on executors, evaluation and checkpoints."""
