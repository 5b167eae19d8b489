"""Accelerators: moving tensors there and back, their settings, and their identity."""
