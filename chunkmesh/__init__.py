"""What the services share: contracts, gRPC chassis, data plane, page keys, command line."""

__version__ = "0.1.0"
