"""Upgrade of a running fleet from one lock to another; at worst a few nodes stay on their old stack."""
