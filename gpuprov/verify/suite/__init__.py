"""The checks: one file per role, run by testinfra on each node."""
