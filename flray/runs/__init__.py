"""A run: its folder and journal, the loop over rounds, its figures, and how it is resumed."""
