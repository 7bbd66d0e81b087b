"""Health of a node, judged on the node itself: the doctor's rules, run by a timer.

`look` collects and judges, `memory` keeps a fault that comes and goes, `verdict` makes one verdict of it,
`output` writes it for Slurm, Kubernetes and Prometheus, `program` is the entry point. All of it is packed
into one file for nodes (`gpuprov.roles.health`), which needs only Python 3.9 and its standard library.
"""
