"""How different the finds are: reported, and never optimised.

Three looks at the probes of a run: the distance of their programs and of their examples by sentence
embeddings, which methods break on which of them, and, where one is given, a language model's
opinion. Nothing here takes part in a search, in admission or in the gate.
"""
