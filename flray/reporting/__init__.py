"""Reports of a result set: tables beside the printed numbers, costs and figures, in every format."""
