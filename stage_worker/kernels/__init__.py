"""Kernels for NVIDIA GPUs, one idea a file, and what each of them computes, in plain torch.

reference.py runs on any device and is what the others are measured against. Nothing here knows of
requests, layers or streams: tensors in, tensors out, on the current stream, without a host sync.
"""
