"""Models of the files that people write and of the lock, and their YAML parser."""
