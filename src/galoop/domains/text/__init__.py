"""What the text domains share: the probe contract, its validation and its isolated builder."""
