"""What people write, and the lock that says exactly what it means; reading YAML well."""
