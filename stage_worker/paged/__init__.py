"""The model over paged kernels: the same families as on the CPU, made of other operations.

Weights, pages and activations are on one device, mostly a GPU. What computes an operation is chosen
once (backends.py); with plain torch everything runs on a CPU too, which is how it is tested.
"""
