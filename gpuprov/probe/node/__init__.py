"""What runs on a node: Python 3.6 to 3.13 and its standard library, nothing else.

The modules travel as text in one payload and are never written to the node's disk. They collect values as
they are found and judge nothing: parsing happens on the controller. Annotations that Python 3.6 cannot
evaluate stand in quotes.
"""
