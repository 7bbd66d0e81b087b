"""A machine as it is, without a lock: what is wrong, how that is known, how bad it is, what mends it.

`look` collects, `examination` reads, one file a concern judges by plain predicates, `judge` puts their faults
in order. What could not be read is unknown, and never healthy. Nothing is changed on the machine.
"""
