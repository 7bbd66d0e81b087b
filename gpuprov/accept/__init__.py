"""Acceptance under load: measured on the node, judged on the controller."""
