"""Diagnosis of a machine without a lock: its faults, with evidence, severity and remedy.

`look` collects, `examination` parses, one file per concern judges by plain predicates, `judge` orders the
faults. A value that could not be read is unknown, never healthy. Nothing is changed on the machine.
"""
