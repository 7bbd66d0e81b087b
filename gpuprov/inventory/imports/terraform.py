"""Machines in Terraform's state: the file (version 4), or the output of `terraform show -json`.

The providers' documentation describes the attributes: aws_instance, google_compute_instance,
azurerm_linux_virtual_machine, oci_core_instance, lambdalabs and openstack_compute_instance_v2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports.machine import Machine

Values = Mapping[str, Any]


def machines(state: Any) -> list[Machine]:
    """Return the machines of a state.

    Raises:
        InvalidInput: the document is not a state, or has no machine of a known provider.
    """
    if not isinstance(state, dict) or not ("resources" in state or "values" in state):
        raise InvalidInput(
            "not of Terraform",
            expected="terraform.tfstate of version 4, `terraform show -json` or `terraform output -json`",
        )
    found = []
    for kind, label, index, values in _resources(state):
        reader = READERS.get(kind)
        if reader:
            found.append(reader(values, label if index is None else f"{label}-{index}", label))
    if not found:
        raise InvalidInput("the state holds no machine", expected="resources of " + ", ".join(READERS))
    return found


def _resources(state: Values) -> Iterator[tuple[str, str, int | str | None, Values]]:
    """Yield type, label, index and values of every managed resource."""
    for resource in state.get("resources", ()):
        if resource.get("mode") == "managed":
            for instance in resource.get("instances", ()):
                key = instance.get("index_key")
                yield resource["type"], resource["name"], key, instance.get("attributes") or {}
    modules = [state.get("values", {}).get("root_module", {})]
    while modules:
        module = modules.pop(0)
        modules += module.get("child_modules", ())
        for resource in module.get("resources", ()):
            if resource.get("mode") == "managed":
                yield resource["type"], resource["name"], resource.get("index"), resource.get("values") or {}


def _aws(values: Values, name: str, label: str) -> Machine:
    tags = values.get("tags") or {}
    address = values.get("public_ip") or values.get("private_ip") or ""
    return Machine(
        name=str(tags.get("Name") or name),
        address=address,
        group=label,
        instance=f"aws:{values.get('instance_type')}",
        site=values.get("availability_zone"),
    )


def _google(values: Values, name: str, label: str) -> Machine:
    interface: Values = next(iter(values.get("network_interface") or []), {})
    access: Values = next(iter(interface.get("access_config") or []), {})
    return Machine(
        name=str(values.get("name") or name),
        address=access.get("nat_ip") or interface.get("network_ip") or "",
        group=label,
        instance=f"gcp:{str(values.get('machine_type')).rpartition('/')[2]}",
        site=values.get("zone"),
    )


def _azure(values: Values, name: str, label: str) -> Machine:
    return Machine(
        name=str(values.get("computer_name") or values.get("name") or name),
        address=values.get("public_ip_address") or values.get("private_ip_address") or "",
        group=label,
        instance=f"azure:{values.get('size')}",
        site=values.get("location"),
        ssh={"user": values["admin_username"]} if values.get("admin_username") else {},
    )


def _oci(values: Values, name: str, label: str) -> Machine:
    return Machine(
        name=str(values.get("display_name") or name),
        address=values.get("public_ip") or values.get("private_ip") or "",
        group=label,
        instance=f"oci:{values.get('shape')}",
        site=values.get("availability_domain"),
    )


def _lambda(values: Values, name: str, label: str) -> Machine:
    return Machine(
        name=str(values.get("name") or name),
        address=values.get("ip") or "",
        group=label,
        instance=f"lambda:{values.get('instance_type_name')}",
        site=values.get("region_name"),
    )


def _openstack(values: Values, name: str, label: str) -> Machine:
    return Machine(
        name=str(values.get("name") or name),
        address=values.get("access_ip_v4") or "",
        group=label,
        site=values.get("availability_zone"),
    )


READERS: dict[str, Callable[[Values, str, str], Machine]] = {
    "aws_instance": _aws,
    "google_compute_instance": _google,
    "azurerm_linux_virtual_machine": _azure,
    "oci_core_instance": _oci,
    "lambdalabs_instance": _lambda,
    "openstack_compute_instance_v2": _openstack,
}
