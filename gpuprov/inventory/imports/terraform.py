"""Machines in Terraform's state: the file (version 4), or the output of `terraform show -json`.

The providers' documentation describes the attributes: aws_instance, google_compute_instance,
azurerm_linux_virtual_machine, oci_core_instance, lambdalabs and openstack_compute_instance_v2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports.fields import Fields
from gpuprov.inventory.imports.machine import Machine


def machines(state: Any) -> list[Machine]:
    """Return the machines of a state.

    Raises:
        InvalidInput: the document is not a state, has no machine of a known provider, or a field has another
            type.
    """
    if not isinstance(state, dict) or not ("resources" in state or "values" in state):
        raise InvalidInput(
            "not of Terraform",
            expected="terraform.tfstate of version 4, `terraform show -json` or `terraform output -json`",
        )
    found = []
    for kind, label, index, values in _resources(Fields(state)):
        reader = READERS.get(kind)
        if reader:
            found.append(reader(values, f"{label}-{index}" if index else label, label))
    if not found:
        raise InvalidInput("the state holds no machine", expected="resources of " + ", ".join(READERS))
    return found


def _resources(state: Fields) -> Iterator[tuple[str, str, str, Fields]]:
    """Yield type, label, index ("" without one) and values of every managed resource, in a state file or in
    the output of Terraform's `show`.
    """
    for resource in state.parts("resources"):
        if resource.text("mode") == "managed":
            for instance in resource.parts("instances"):
                index = instance.label("index_key")
                yield resource.text("type"), resource.text("name"), index, instance.part("attributes")
    modules = deque([state.part("values", "root_module")])
    while modules:
        module = modules.popleft()
        modules += module.parts("child_modules")
        for resource in module.parts("resources"):
            if resource.text("mode") == "managed":
                index = resource.label("index")
                yield resource.text("type"), resource.text("name"), index, resource.part("values")


def _aws(values: Fields, name: str, label: str) -> Machine:
    """Return the machine of a resource of AWS; `name` counts if it states no name, `label` is its group."""
    return Machine(
        name=values.part("tags").text("Name") or name,
        address=values.text("public_ip", "private_ip"),
        group=label,
        instance=f"aws:{values.text('instance_type')}",
        site=values.text("availability_zone") or None,
    )


def _google(values: Fields, name: str, label: str) -> Machine:
    """Return the machine of a resource of Google Cloud, as `_aws`."""
    interface = values.first("network_interface")
    return Machine(
        name=values.text("name") or name,
        address=interface.first("access_config").text("nat_ip") or interface.text("network_ip"),
        group=label,
        instance=f"gcp:{values.text('machine_type').rpartition('/')[2]}",
        site=values.text("zone") or None,
    )


def _azure(values: Fields, name: str, label: str) -> Machine:
    """Return the machine of a resource of Azure, as `_aws`, with its user for logins."""
    user = values.text("admin_username")
    return Machine(
        name=values.text("computer_name", "name") or name,
        address=values.text("public_ip_address", "private_ip_address"),
        group=label,
        instance=f"azure:{values.text('size')}",
        site=values.text("location") or None,
        ssh={"user": user} if user else {},
    )


def _oci(values: Fields, name: str, label: str) -> Machine:
    """Return the machine of a resource of Oracle Cloud, as `_aws`."""
    return Machine(
        name=values.text("display_name") or name,
        address=values.text("public_ip", "private_ip"),
        group=label,
        instance=f"oci:{values.text('shape')}",
        site=values.text("availability_domain") or None,
    )


def _lambda(values: Fields, name: str, label: str) -> Machine:
    """Return the machine of a resource of Lambda, as `_aws`."""
    return Machine(
        name=values.text("name") or name,
        address=values.text("ip"),
        group=label,
        instance=f"lambda:{values.text('instance_type_name')}",
        site=values.text("region_name") or None,
    )


def _openstack(values: Fields, name: str, label: str) -> Machine:
    """Return the machine of a resource of OpenStack, as `_aws`, without its kind."""
    return Machine(
        name=values.text("name") or name,
        address=values.text("access_ip_v4"),
        group=label,
        site=values.text("availability_zone") or None,
    )


READERS: dict[str, Callable[[Fields, str, str], Machine]] = {
    "aws_instance": _aws,
    "google_compute_instance": _google,
    "azurerm_linux_virtual_machine": _azure,
    "oci_core_instance": _oci,
    "lambdalabs_instance": _lambda,
    "openstack_compute_instance_v2": _openstack,
}
