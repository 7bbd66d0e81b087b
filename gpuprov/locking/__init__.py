"""Resolver and lock: from fleet.yml, the catalog and the repositories' indexes to exact packages.

Nothing is imported here: `resolve` answers in a fraction of the time that a lock's modules take to import.
"""
