"""Names of gpuprov in Kubernetes."""

from __future__ import annotations

PREFIX = "gpuprov.io/"
"""Prefix of gpuprov's own labels and annotations of nodes. Other prefixes belong to other programs."""
