"""A mirror of NVIDIA's package repositories for tests and labs: real layout, names and versions, stub
contents.

`nvidia.build` makes the whole mirror in seconds; `apt.build` and `rpm.build` make one repository from package
specs.
What the mirror holds is data: `releases.json` says which versions, `sets/*.control` which packages those
bring, both with what was seen of the real repositories and what was not.
"""
