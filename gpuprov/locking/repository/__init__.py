"""Package repositories read from their own indexes: exact versions are looked up, never composed.

`apt.open_apt` and `rpm.open_rpm` read one repository and give an `index.Index`; `Index.union` lays several
side by side; `closure.closure` walks from a few package names to every package of a family that has to move
with them.
"""
