"""Plan and change: roles, reboots, and the switch that takes a lock-out back."""
