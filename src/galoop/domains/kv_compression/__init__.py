"""KV-cache compression on kvpress."""
