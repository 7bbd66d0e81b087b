"""Program for a node that loads its GPUs: standard library and ctypes only, Python 3.6 or newer."""
