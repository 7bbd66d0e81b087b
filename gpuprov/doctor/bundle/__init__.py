"""Support bundle of a machine in one file: the fields of a table, each with the pattern of its values."""
