"""Repair of faulty nodes: a ladder of rungs per verdict, each tried only after the one before did not help.

`ladder` has the table, `state` the order of steps, `engine` runs them with the journal, leases, hooks and
window of `gpuprov.upgrade`. No step ends a job.
"""
