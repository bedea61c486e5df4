"""Data: texts to token rows (encoding), rows to batches (packing), their order, and the bundled sample."""
