"""Captured text in, typed facts out: one noun a file, no input or output, no state.

A parser takes whatever a node said. What it does not know passes by, what says "not available" is `None`,
and only a text that is not of its kind at all is an error, which is a value too.
"""
