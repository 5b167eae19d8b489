"""Accelerators: moving tensors there and back, their settings, and what identifies them."""
