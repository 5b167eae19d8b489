"""The client side of a federation inside one process."""
