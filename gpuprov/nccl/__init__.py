"""NCCL: its own log read and judged, its environment derived from a node's NICs, its speed measured."""
