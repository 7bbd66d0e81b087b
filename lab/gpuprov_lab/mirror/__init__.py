"""A mirror of NVIDIA's package repositories for tests and labs: real layout, names and versions, stub
contents.

`nvidia.build` builds the whole mirror in seconds; `apt.build` and `rpm.build` build one repository from
package specs.

The content is data: `releases.json` states the versions, `sets/*.control` their
packages, both with notes on what was seen of the real repositories and what was not.
"""
