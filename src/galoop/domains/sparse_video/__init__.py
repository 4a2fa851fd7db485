"""Sparse video generation. What is built and what is not: docs/domains/sparse-video.md."""
