"""Fleet and lock as Ansible sees them."""
