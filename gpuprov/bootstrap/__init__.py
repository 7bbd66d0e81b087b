"""First contact: from what a cloud hands over to the login that the fleet is run by."""
