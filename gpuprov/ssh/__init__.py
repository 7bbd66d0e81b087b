"""SSH to nodes: routes, credentials, host keys, messages for failures, and the workers of `--workers`."""
