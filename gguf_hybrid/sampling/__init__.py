"""Logits to a token id, in NumPy: settings, the chain of samplers, and constraints on the output."""
