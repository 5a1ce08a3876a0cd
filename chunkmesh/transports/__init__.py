"""The data plane: activations from stage to stage, one interface with three implementations."""
