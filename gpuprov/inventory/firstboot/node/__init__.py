"""Runs on a machine before gpuprov is there. Standard library only, Python 3.6."""
