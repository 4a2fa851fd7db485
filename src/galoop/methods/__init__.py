"""Approximation algorithms that no kept package offers, one small file each.

A method knows neither domains nor searches. What several of them share lives beside them:
:mod:`.selection` (sparse decoding: what a method is given and how a choice is made and counted),
:mod:`.kmeans`, and :mod:`.sparse_attention` (the context manager that runs a method in a model);
:mod:`.video_plan`, :mod:`.video_compute` and :mod:`.video_attention` are the same for video.
"""
