"""Meshes of a tiny random Llama give transformers' ids, whatever the cut, the split and the cache."""
