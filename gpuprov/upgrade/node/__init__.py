"""What runs on a node around an upgrade: Python 3.6 to 3.13 and its standard library, as the probe."""
