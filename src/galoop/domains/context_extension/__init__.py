"""The domain ``context-extension``: a model stretched beyond its native window."""
