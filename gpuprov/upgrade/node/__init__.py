"""Programs on a node during an upgrade: standard library of Python 3.6 to 3.13 only, as for the probe."""
