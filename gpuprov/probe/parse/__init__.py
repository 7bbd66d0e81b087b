"""Parsers from captured text to typed facts: one file per subject, no input or output, no state.

A parser accepts any output of a node. Unknown parts are ignored, "not available" becomes `None`,
and only text of an entirely different kind is an error, which is also a value.
"""
