"""What is sent to a node to load its GPUs: the standard library and ctypes alone, Python 3.6 or newer."""
