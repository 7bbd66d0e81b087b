"""gpuprov takes a fresh GPU server to a declared, proven state and keeps it there."""

__version__ = "0.1.0"
