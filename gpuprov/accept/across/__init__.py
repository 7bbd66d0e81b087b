"""Acceptance across nodes: rounds of groups that find a slow or broken node or link."""
