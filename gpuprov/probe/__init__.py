"""One script per node over one channel, and the pure parsers of what it brings back."""
