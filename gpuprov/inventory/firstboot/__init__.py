"""Files that bring a machine to its lock after its first boot: the lock, an order, a program, a unit."""
