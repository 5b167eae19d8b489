"""Parts that several methods share: aggregation, batches, the resident model, public-data exchange."""
