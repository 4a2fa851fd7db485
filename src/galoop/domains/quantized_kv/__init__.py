"""Quantized KV caches: fewer bits for every number of a prefilled cache."""
