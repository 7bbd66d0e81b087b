"""The compatibility rules: plain, named predicates over catalog records, each with its source.

They say what is so; the resolver says it to a person. Null in a record means unknown, and a predicate
never says no because of it.
"""
