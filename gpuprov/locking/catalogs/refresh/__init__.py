"""Comparison of the catalog with published lists.

The lists are read and turned into proposed changes, which are shown, and written only on request.
"""
