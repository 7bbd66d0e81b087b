"""Healthy machines of different kinds: lab nodes of every machine and system, and recorded machines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuprov.doctor.judge import Diagnosis, diagnose
from gpuprov_lab import Lab, Node
from gpuprov_lab.simulator import machines
from gpuprov_lab.variants import with_os_release
from tests.campaign._doctor_health import drains, drains_recorded
from tests.campaign._doctor_look import driven, look
from tests.lab.provisioned_node import provision
from tests.lab.ubuntu_nodes import os_release
from tests.systems import DEBIAN, UBUNTU
from tests.unit.doctor.machines import HEALTHY, as_examined

Up = Callable[[Lab], Node]


@dataclass(frozen=True)
class Healthy:
    """One machine.

    Args:
        name: description.
        up: function that starts it.
        user: login of the examination.
    """

    name: str
    up: Up
    user: str = "root"

    def look(self, lab: Lab, *, health: bool) -> tuple[Diagnosis, str]:
        """Return the doctor's diagnosis, and why the health check would drain the node, "" if it would not.

        The node is removed afterwards.
        """
        node = self.up(lab)
        found = look(lab, node, self.user)
        drained = drains(node) if health else ""
        lab.down([node.name])
        return found, drained


def recorded(*, health: bool) -> Iterator[tuple[str, Diagnosis, str]]:
    """Yield machines that were recorded or composed from recordings, as `Healthy.look` returns them."""
    for name, machine in HEALTHY.items():
        seen = as_examined(machine())
        yield f"{name} (from a file)", diagnose(seen), drains_recorded(seen) if health else ""


def of_the_lab() -> Iterator[Healthy]:
    """Yield machines that are started in the lab."""
    for machine in machines():
        for system in DEBIAN:
            yield Healthy(f"{system} {machine}", _with_gpus(system, machine))
    for system in DEBIAN:
        yield Healthy(f"{system} without a GPU", lambda lab, system=system: lab.up(1, os=system)[0])  # type: ignore[misc]
        yield Healthy(
            f"{system} minimal, without a GPU",
            lambda lab, system=system: lab.up(1, image=f"{system}-minimal")[0],  # type: ignore[misc]
        )
    for system in UBUNTU:
        yield Healthy(
            f"debian12 that says {system}, l40sx4",
            lambda lab, system=system: _driven(  # type: ignore[misc]
                lab.up(1, gpu="l40sx4", prepare=[with_os_release(os_release(system))])[0]
            ),
        )
    yield Healthy("debian12 h100x8 with MIG in use", _sliced)
    yield Healthy("debian12 a100x4 under other settings", _tuned)
    yield Healthy("debian12 t4x1, as a user without root", _for_a_user, user="plain")
    yield Healthy("debian12 a100x4 that gpuprov apply has made, with Docker", _applied)


def _with_gpus(system: str, machine: str) -> Up:
    """Return a function that starts a node with a driver on this machine and system."""
    return lambda lab: _driven(lab.up(1, os=system, gpu=machine)[0])


def _driven(node: Node) -> Node:
    """Give a node its driver, and return it."""
    driven(node)
    return node


def _sliced(lab: Lab) -> Node:
    """Start a node with two MIG instances on GPU 0."""
    node = _with_gpus("debian12", "h100x8")(lab)
    node.run("nvidia-smi -i 0 -mig 1; nvidia-smi mig -i 0 -cgi 3g.40gb,3g.40gb -C")
    return node


def _tuned(lab: Lab) -> Node:
    """Start a node with settings that an operator may choose: a lower power limit, an exclusive GPU."""
    node = _with_gpus("debian12", "a100x4")(lab)
    node.run("nvidia-smi -pl 350; nvidia-smi -i 1 -c 3")
    return node


def _for_a_user(lab: Lab) -> Node:
    """Start a node with a user without rights, who may log in."""
    node = _with_gpus("debian12", "t4x1")(lab)
    node.run(
        "useradd -m -s /bin/bash plain && install -d -o plain -m 700 ~plain/.ssh && "
        "install -o plain -m 600 /root/.ssh/authorized_keys ~plain/.ssh/authorized_keys"
    )
    return node


def _applied(lab: Lab) -> Node:
    """Start a node that `gpuprov apply` has set up."""
    with tempfile.TemporaryDirectory() as folder:
        return provision(lab, Path(folder))
