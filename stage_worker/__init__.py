"""Serves one contiguous layer range: weights, paged KV, forward, and sampling on the last stage."""
