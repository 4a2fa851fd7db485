"""The domain ``sparse-decoding``: question and answer attend to a few entries of the cache."""
