"""First contact: from the login that a cloud provides to the login of the fleet."""
