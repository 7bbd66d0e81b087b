"""What a vendor's support asks for, in one file: fields of a table, each with the pattern of its value."""
