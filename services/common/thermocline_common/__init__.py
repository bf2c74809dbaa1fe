"""What the operator, the services and the command line share: the resource, the protocol's data, thin clients."""

__version__ = "0.1.0"
