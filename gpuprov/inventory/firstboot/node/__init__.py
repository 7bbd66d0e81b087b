"""Program for a machine without gpuprov. Standard library only, Python 3.6."""
