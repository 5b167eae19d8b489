"""Which metrics exist beyond a task's own, and how they are summarised."""
