"""Modules that run on a node, with nothing but Python 3.6 to 3.13 and its standard library.

The modules are sent as text in one payload and are never written to the node's disk. They collect raw values
and judge nothing: parsing happens on the controller. Annotations that Python 3.6 cannot evaluate are quoted.
"""
