"""Learning tasks: the loss that is minimised and the metrics that are reported."""
