"""Reader of package repositories: exact versions come from the repositories' indexes, and are never composed.

`apt.open_apt` and `rpm.open_rpm` read one repository and return an `index.Index`; `Index.union` combines
several; `closure.closure` finds, from a few package names, every package of a family that must change with
them.
"""
