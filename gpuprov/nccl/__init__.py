"""NCCL: parse and judge its log, derive its environment from a node's NICs, measure its speed."""
