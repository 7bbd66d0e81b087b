"""Plans and changes of nodes: roles, reboots, and the dead man's switch against a lock-out."""
