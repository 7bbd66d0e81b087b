"""The compatibility rules: plain, named predicates over catalog records, each with its source.

They decide; the resolver writes the message. Null in a record means unknown, and no predicate is
false because of it.
"""
