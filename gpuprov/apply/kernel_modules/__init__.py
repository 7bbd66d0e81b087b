"""Kernel modules that one node compiled, kept on the controller for all nodes with the same kernel."""
