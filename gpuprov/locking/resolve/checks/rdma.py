"""Checks of DOCA-OFED, NVIDIA's RDMA drivers, against system and module build."""

from __future__ import annotations

from gpuprov.catalog.rules import rdma as rules
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason, violation
from gpuprov.locking.resolve.packages import doca_known


def doca(case: Case, draft: Draft) -> Findings:
    """Check that DOCA-OFED exists for the system, if the request has it.

    The reasons state the order of installation, and that its modules are compiled on the node.
    """
    if not case.doca:
        return
    release = case.doca_release
    what = f"DOCA-OFED {release}" if release else "DOCA-OFED"
    if case.system is not None and not doca_known(case, draft):
        text = f"no packages of DOCA-OFED are known for {case.system.title}"
        yield violation(case, "doca-packages", text, "doca-profiles", "doca-use")
    elif case.system is not None and not rules.doca_supports(case.system, release):
        text = f"{what}: {case.system.title} is supported from DOCA {case.system.doca_first} on"
        yield violation(case, "doca-on-os", text, "gds-doca")
    text = (
        f"{what} is installed before NVIDIA's driver and before nvidia-fs, which are compiled against its "
        "modules, and in place of the kernel's own RDMA drivers; a reboot loads it"
    )
    yield reason(case, "doca-order", text, "gds-doca", "op-rdma")
    text = (
        f"{what}: DKMS compiles its modules on the node for each kernel, and no key of NVIDIA's signs them: "
        "under Secure Boot the node's own key does"
    )
    yield reason(case, "doca-dkms", text, "doca-dkms")


CHECKS = (doca,)
