"""Comparison of a node's facts with the lock."""
