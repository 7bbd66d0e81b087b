"""Fleet and lock as Ansible inventories, and the import and export of other formats."""
