"""MLflow tracking: journals are exported in the background, without blocking training."""
