"""What the world's own lists say that the catalog does not: read, turned into proposed changes, shown, and
written only when asked."""
