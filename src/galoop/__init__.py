"""galoop: generative adversarial loops for efficient inference."""

__version__ = "0.1.0"
