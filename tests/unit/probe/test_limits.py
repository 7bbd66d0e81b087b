"""Limits of the probe on the node, which parsers and verify apply again."""

from __future__ import annotations

import gpuprov_cdi
import gpuprov_package_files

from gpuprov.probe.node import gpu
from gpuprov.probe.node import packages as node_packages
from gpuprov.probe.node import sshd as node_sshd
from gpuprov.probe.parse import containers, loading, packages, sshd
from gpuprov.probe.payload import Parameters
from gpuprov.verify.observers import package_files
from gpuprov.verify.observers import sshd as verify_sshd


def test_parsers_have_the_limits_of_collectors() -> None:
    assert sshd.ANSWERS_AT_MOST == node_sshd.ASKED_MAX * node_sshd.LISTENERS_MAX
    assert loading.KERNELS_AT_MOST == gpu.KERNELS_AT_MOST
    assert packages.FILES_AT_MOST == node_packages.ROWS
    assert containers.NAMED_AT_MOST == gpuprov_cdi.NAMED_AT_MOST


def test_verify_asks_with_the_limits_and_strangers_of_the_probe() -> None:
    assert Parameters().strangers == verify_sshd.FOREIGN
    assert verify_sshd.ASKED_MAX == node_sshd.ASKED_MAX
    assert verify_sshd.LISTENERS_MAX == node_sshd.LISTENERS_MAX
    assert package_files.BUDGET == gpuprov_package_files.BUDGET
