"""Acceptance across nodes: rounds of groups that find the node or the link that holds up the others."""
