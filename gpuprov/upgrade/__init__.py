"""Moves a running fleet from one lock to another; the worst outcome is a few nodes on their old stack."""
