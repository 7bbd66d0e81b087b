"""Part of the simulator that runs on a lab node; it uses only Python's standard library."""
