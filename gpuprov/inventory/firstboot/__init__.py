"""What a machine needs to bring itself to its lock after its first boot: an order, a program, a unit, the lock."""
