"""The benchmark of `chunkmesh bench`: what is sent, when, what came back, and what it means."""
