"""Imported files of Terraform, clouds and Slurm: an error names the field, with any content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.inventory.imports import ImportHints, import_fleet
from gpuprov.inventory.imports.fields import Fields

ALL = ImportHints({"": "hgx-h100-8"}, {"": "ubuntu24.04"})


def state(kind: str = "lambdalabs_instance", **attributes: Any) -> dict[str, Any]:
    """Return a Terraform state with one resource of a kind, with these attributes."""
    resource = {"mode": "managed", "type": kind, "name": "a", "instances": [{"attributes": attributes}]}
    return {"terraform_version": "1", "resources": [resource]}


def shown(**values: Any) -> dict[str, Any]:
    """Return the output of `terraform show -json` with one resource in a child module."""
    resource = {"mode": "managed", "type": "lambdalabs_instance", "name": "a", "values": values, "index": 0}
    return {
        "terraform_version": "1",
        "values": {"root_module": {"child_modules": [{"resources": [resource]}]}},
    }


def output(value: Any) -> dict[str, Any]:
    """Return Terraform outputs with one value."""
    return {"a": {"value": value, "type": "object"}}


CLOUD = {"cloud_name": "aws", "local_hostname": "a", "distro": "ubuntu", "distro_version": "24.04"}
DOCUMENTS: dict[str, Any] = {
    "state": state(name="n1", ip="192.0.2.1", region_name="r1"),
    "aws": state("aws_instance", tags={"Name": "n1"}, public_ip="192.0.2.1", instance_type="p5.48xlarge"),
    "google": state(
        "google_compute_instance",
        name="n1",
        network_interface=[{"network_ip": "192.0.2.1", "access_config": [{"nat_ip": "192.0.2.2"}]}],
        machine_type="a3-highgpu-8g",
    ),
    "azure": state("azurerm_linux_virtual_machine", computer_name="n1", admin_username="u", size="x"),
    "shown": shown(name="n1", ip="192.0.2.1"),
    "output": output([{"ip": "192.0.2.1", "name": "n1", "user": "u", "port": 22, "zone": "z"}]),
    "cloud-init": {
        "v1": {**CLOUD, "machine": "x86_64", "region": "r"},
        "ds": {"meta_data": {"instance-type": "p5.48xlarge", "local-ipv4": "192.0.2.1"}},
    },
    "azure itself": {
        "compute": {"name": "n1", "vmSize": "x", "location": "l"},
        "network": {"interface": [{"ipv4": {"ipAddress": [{"privateIpAddress": "192.0.2.1"}]}}]},
    },
    "google itself": {
        "instance": {"name": "n1", "machineType": "x/y", "networkInterfaces": [{"ip": "192.0.2.1"}]}
    },
    "oci itself": {"hostname": "n1", "shape": "BM.GPU.H100.8", "region": "r"},
    "aws itself": {"instanceId": "i-1", "instanceType": "p5.48xlarge", "architecture": "x86_64"},
}
OTHERS: tuple[Any, ...] = (None, 5, True, 1.5, "x", "", [], [1], [[]], {}, {"a": 1}, "9" * 5000)


def changed(document: Any) -> Iterator[Any]:
    """Yield the document with each of its values replaced by each of `OTHERS`."""
    yield from OTHERS
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        for other in changed(value):
            copy = dict(document) if isinstance(document, dict) else list(document)
            copy[key] = other
            yield copy


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_may_have_any_type(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Require typed errors: the wrapper that converts other exceptions is not used."""
    monkeypatch.setattr("gpuprov.inventory.imports.stated_file", nothing)
    path = tmp_path / "x.json"
    for document in changed(DOCUMENTS[name]):
        path.write_text(json.dumps(document))
        try:
            fleet = import_fleet([path], ALL)
        except GpuprovError:
            continue
        for group in fleet["groups"].values():
            hosts = group["hosts"] if isinstance(group["hosts"], dict) else {}
            addresses = [each["address"] if isinstance(each, dict) else each for each in hosts.values()]
            assert all(isinstance(each, str) for each in (*addresses, group.get("site", "")))


class nothing:  # noqa: N801 - in place of a context manager that is a function
    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (state(ip=7), "resources[0].instances[0].attributes.ip is '7'; expected text"),
        ({"terraform_version": "1", "resources": 5}, "resources is '5'; expected a list"),
        ({"terraform_version": "1", "values": 3}, "values is '3'; expected an object"),
        (output({"ip": "192.0.2.1", "port": [1]}), "output a: a.port is '[1]'; expected a whole number"),
        ({"v1": {**CLOUD, "machine": {"x": 1}}}, "v1.machine is '{'x': 1}'; expected text"),
        ("[" * 100_000, "nested too deeply; expected JSON, a list of hosts, or slurm.conf"),
        ('{"terraform_version": ' + "9" * 5000 + "}", "Exceeds the limit (4300 digits)"),
        ('NodeName=a"', "No closing quotation; expected NAME=VALUE, as in slurm.conf"),
        ("NodeName=a Gres=gpu:h100:" + "9" * 5000, "expected a number of GPUs, such as gpu:h100:8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: Any, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(InvalidInput) as raised:
        import_fleet([path], ALL)
    assert words in str(raised.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    st.text(max_size=80),
    st.sampled_from(["slurm", "hosts"]),
    st.sampled_from(["", "NodeName=", "PartitionName=x Nodes="]),
)
def test_any_list_is_read_or_refused(tmp_path: Path, text: str, form: Any, start: str) -> None:
    path = tmp_path / "x"
    path.write_text(start + text, "utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuprov.inventory.imports.stated_file", nothing)
        with suppress(GpuprovError):
            import_fleet([path], ALL, form)


def test_numbers_and_labels() -> None:
    """Check which values count as a number or a label, and what others give."""
    fields = Fields({"a": "22", "b": 7, "c": True, "d": 10**9, "e": "", "f": None, "id": 10**12})
    assert [fields.number(name) for name in ("a", "b", "e", "f", "x")] == [22, 7, None, None, None]
    assert [fields.label(name) for name in ("a", "b", "e", "x", "id")] == ["22", "7", "", "", str(10**12)]
    for name in ("c", "d"):
        with pytest.raises(InvalidInput, match=f"{name} is .*expected a whole number"):
            fields.number(name)
    with pytest.raises(InvalidInput, match="c is 'True'; expected text"):
        fields.label("c")
