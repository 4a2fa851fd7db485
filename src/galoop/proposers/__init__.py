"""What writes the next candidate."""
