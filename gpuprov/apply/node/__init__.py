"""Programs for nodes: leases, and archives of compiled modules. Python 3.6, only its standard library."""
