"""Sent to nodes: who may change one. Standard library only, Python 3.6."""
