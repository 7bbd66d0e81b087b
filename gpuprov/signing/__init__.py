"""Modules signed with a site's key, so that kernels under Secure Boot take them."""
