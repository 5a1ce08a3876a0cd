"""What the services share: contracts, gRPC chassis, data plane, page keys, command line."""

__version__ = "0.1.0"
PROTOCOL_VERSION = 1
"""Of the Attach stream; scheduler and workers must have the same."""
