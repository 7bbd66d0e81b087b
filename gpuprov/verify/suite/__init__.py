"""The checks: one file a role, run by testinfra on each node."""
