"""What decides which candidate to mutate and which to keep."""
