"""Plans pipelines that need not exist: `chunkmesh plan`, from shapes and latencies alone.

Pure but for the command and what reads files; the live engine is run on a fake clock.
"""
