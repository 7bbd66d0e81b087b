"""How a node is reached, and what its refusals mean."""
