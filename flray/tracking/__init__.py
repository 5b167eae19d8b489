"""MLflow tracking that never blocks training, the journal behind it, and plots."""
