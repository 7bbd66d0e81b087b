"""Kernel modules signed with a site's key, so that kernels under Secure Boot load them."""
