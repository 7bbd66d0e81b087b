"""What a node says of itself against what the lock says of it."""
