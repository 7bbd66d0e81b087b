"""Probe of a node: one script over one channel, and pure parsers of its answer."""
