"""From fleet.yml, the catalog and the repositories' own indexes to the lock.

Nothing is imported here: `resolve` answers in a fraction of the time that a lock's modules take to import.
"""
