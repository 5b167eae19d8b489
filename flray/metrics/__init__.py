"""Names of metrics, their direction, and the numbers of a run that are reported."""
