"""Sent to nodes: who may log in. POSIX sh, and Python 3.6 with its standard library alone."""
