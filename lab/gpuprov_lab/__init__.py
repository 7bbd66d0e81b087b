"""Throwaway real nodes on this machine: systemd-nspawn on an overlay of a cached base image.

with Lab("mine") as lab:
    one, two = lab.up(count=2, os="debian12")
    one.run("apt-get -q update")
    one.reboot()
"""

from gpuprov_lab.images import saved_images
from gpuprov_lab.lab import Lab, lab_names
from gpuprov_lab.node import Node

__all__ = ["Lab", "Node", "lab_names", "saved_images"]
