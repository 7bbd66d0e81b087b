"""Proof under load that a node's GPUs deliver: measured on the node, judged here."""
