"""One captured prefill, many caches, and greedy answers from all of them in shared passes."""
