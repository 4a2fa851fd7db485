"""Probe programs, whatever they build: static checks, the isolated side, and the calls between."""
