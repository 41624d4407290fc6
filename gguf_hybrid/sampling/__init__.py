"""Logits to a token id, in NumPy: settings, the chain of samplers, constraints on the output."""
