"""The half of the simulator that runs on a lab node: Python's standard library and nothing else."""
