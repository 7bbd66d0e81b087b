"""Kernel modules that one node compiled, kept on the controller for all that have the same kernel."""
