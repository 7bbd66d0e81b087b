"""NVIDIA's container toolkit: its configuration and CDI specifications, as drift and verify read them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import gpuprov_cdi
import pytest
from testinfra.host import Host

from gpuprov.drift.judge import Difference, judge
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.container_toolkit import CONFIG, not_as_shipped
from gpuprov.verify.observers.containers import DEFAULTS, DEVICES, SPECIFICATIONS, TOOLKIT, Containers
from gpuprov.verify.shell import ShellBackend
from tests.unit.verify.nodes_on_paper import PaperShell

DRIVER = "535.309.01"
SHIPPED = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig.real"
load-kmods = true
#no-cgroups = false

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime-hook]
skip-mode-detection = false
"""
"""config.toml of 1.17 as its package writes it on Ubuntu."""


def drift(config: str, default: str = "", **cdi: Any) -> Difference | None:
    """Return the difference of the toolkit's configuration, or None."""
    facts = Facts("node", "", 0.0, {"toolkit": {"config": config, "default": default, "cdi": cdi}})
    found = judge("node", facts, [Expectation("container_toolkit.config", [], "container_toolkit")]).drift
    return found[0] if found else None


def verify(config: str, default: str | None = "") -> list[str]:
    """Return the keys of the toolkit's configuration that are not as shipped, as verify sees them."""
    answers = {
        TOOLKIT: (0, config, ""),
        DEFAULTS: (int(default is None), "usage" if default is None else default, ""),
    }
    host = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    host.backend.set_host(host)
    return not_as_shipped(*Containers.get_module(host).toolkit)


@pytest.mark.parametrize("default", ["", SHIPPED])
def test_a_configuration_as_shipped_is_in_order(default: str) -> None:
    assert drift(SHIPPED, default) is None
    assert verify(SHIPPED, default or None) == []
    assert drift("") is None
    assert verify("") == []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("#no-cgroups = false", "no-cgroups = true", "nvidia-container-cli.no-cgroups = true"),
        ("disable-require = false", "disable-require = true", "disable-require = true"),
        ('mode = "auto"', 'mode = "cdi"', 'nvidia-container-runtime.mode = "cdi"'),
        ("load-kmods", 'root = "/srv/old"\nload-kmods', 'nvidia-container-cli.root = "/srv/old"'),
        ("load-kmods", 'debug = "/x"\nload-kmods', 'nvidia-container-cli.debug = "/x"'),
        ("@/sbin/ldconfig.real", "@/opt/ldconfig", 'nvidia-container-cli.ldconfig = "@/opt/ldconfig"'),
        ("environment = []", 'environment = ["A=1"]', 'nvidia-container-cli.environment = ["A=1"]'),
        ("[nvidia-container-cli]", "[features]\nnew = true\n[nvidia-container-cli]", "features.new = true"),
    ],
)  # fmt: skip
def test_a_changed_key_is_named_by_both(old: str, new: str, key: str) -> None:
    changed = SHIPPED.replace(old, new, 1)
    assert changed != SHIPPED
    for default in ("", SHIPPED):
        found = drift(changed, default)
        assert found
        assert (found.actual, found.by) == ([key], (CONFIG,))
        assert verify(changed, default) == [key]


def test_what_the_installed_toolkit_has_by_default_is_as_shipped() -> None:
    later = SHIPPED + "\n[features]\nnew = true\n"
    assert drift(later, later) is None
    assert verify(later, later) == []


def test_what_shuts_out_more_containers_is_no_difference() -> None:
    stricter = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n" + SHIPPED
    assert drift(stricter, SHIPPED) is None
    assert verify(stricter, SHIPPED) == []


def test_the_other_ldconfig_is_one_only_as_long_as_the_toolkit_does_not_say_which() -> None:
    other = SHIPPED.replace("ldconfig.real", "ldconfig")
    assert drift(other) is None
    found = drift(other, SHIPPED)
    assert found
    assert found.actual == verify(other, SHIPPED) == ['nvidia-container-cli.ldconfig = "@/sbin/ldconfig"']


def test_a_configuration_that_is_no_toml_is_a_difference() -> None:
    found = drift("no-cgroups\n")
    assert found
    assert "is not TOML" in str(found.actual)
    with pytest.raises(ValueError, match="line 1"):
        verify("no-cgroups\n")


SPECIFICATION = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  deviceNodes:
  - path: {there}
  hooks:
  - args: [nvidia-cdi-hook, create-symlinks, --link, libcuda.so.1::/usr/lib/libcuda.so]
    hookName: createContainer
    path: "{there}"
  mounts:
  - containerPath: /nowhere/inside
    hostPath: {library}
devices:
- name: "0"
"""
JSON = '{{"kind": "nvidia.com/gpu", "containerEdits": {{"deviceNodes": [{{"path": "{library}"}}]}}}}\n'


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of specifications, and a folder of libraries with that of one driver."""
    for name in ("etc", "run", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / f"lib/libcuda.so.{DRIVER}").touch()
    monkeypatch.setattr(gpuprov_cdi, "FOLDERS", (str(tmp_path / "etc"), str(tmp_path / "run")))
    return tmp_path


def write(folders: Path, name: str, library: str, text: str = SPECIFICATION) -> None:
    """Write a CDI file for a driver's library into a folder."""
    said = text.format(there=folders / "lib", library=folders / f"lib/libcuda.so.{library}")
    (folders / name).write_text(said)


def seen(folders: Path, loaded: str = DRIVER) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return the results of drift and verify for the specifications, and the places that drift names."""
    modules = {
        "driver": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {loaded}  Release\n",
        "loaded": "x 1 0 - Live 0x0\n",
    }
    raw = {"config": "", "default": "", "cdi": gpuprov_cdi.specifications()}
    expectation = Expectation("container_toolkit.specifications", [], "container_toolkit", subject=DRIVER)
    drifted = judge("node", Facts("node", "", 0.0, {"toolkit": raw, "modules": modules}), [expectation]).drift
    command = SPECIFICATIONS.replace("/etc/cdi", f"{folders}/etc").replace("/var/run/cdi", f"{folders}/run")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    host = Host(ShellBackend("node", PaperShell({SPECIFICATIONS: (0, done.stdout, "")}, None), budget_s=60))
    host.backend.set_host(host)
    said = Containers.get_module(host).unfit_specifications(DRIVER) if loaded == DRIVER else []
    return (list(drifted[0].actual), said, drifted[0].by) if drifted else ([], said, ())


def gpus(raw: dict[str, Any], listed: str, loaded: str = DRIVER) -> tuple[Any, int]:
    """Return the numbers of GPUs that drift and verify count; 2 are expected.

    Args:
        raw: the probe's specifications.
        listed: output of `nvidia-ctk cdi list`.
    """
    modules = {"driver": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {loaded}  Release\n"}
    facts = Facts("node", "", 0.0, {"toolkit": {"config": "", "default": "", "cdi": raw}, "modules": modules})
    stated = Expectation("container_toolkit.devices", 2, "container_toolkit", subject=DRIVER)
    drifted = judge("node", facts, [stated]).drift
    host = Host(ShellBackend("node", PaperShell({DEVICES: (0, listed, "")}, None), budget_s=60))
    host.backend.set_host(host)
    return drifted[0].actual if drifted else 2, Containers.get_module(host).devices


EVERY = """\
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
  name: all
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
kind: nvidia.com/gpu
"""
LISTED = "nvidia.com/gpu=0\nnvidia.com/gpu=1\nnvidia.com/gpu=GPU-8cd1\nnvidia.com/gpu=all\n"


@pytest.mark.parametrize(
    ("text", "listed", "found"),
    [
        (EVERY, LISTED, 2),
        (EVERY.replace("    - path: /dev/nvidia1\n", ""), LISTED.replace("nvidia.com/gpu=1\n", ""), 1),
        (EVERY.replace("name: all", 'name: "1"'), LISTED.replace("nvidia.com/gpu=all\n", ""), 0),
        (EVERY, LISTED.replace("=0\n", "=0:0\n").replace("=1\n", "=1:0\nnvidia.com/gpu=1:1\n"), 2),
        ("", "", 0),
    ],
    ids=["every", "one-is-missing", "not-all", "mig", "emptied"],
)
def test_gpus_that_a_container_can_ask_for(folders: Path, text: str, listed: str, found: int) -> None:
    (folders / "run/nvidia.yaml").write_text(text)
    assert gpus(gpuprov_cdi.specifications(), listed) == (found, found)


def test_before_the_reboot_no_device_is_expected(folders: Path) -> None:
    assert gpus({}, "", loaded="550.54.14") == (2, 0)


def test_a_specification_that_users_cannot_read_is_named_by_both(folders: Path) -> None:
    write(folders, "run/nvidia.yaml", DRIVER)
    path = folders / "run/nvidia.yaml"
    path.chmod(0o600)
    said = [f"{path} is not readable for users"]
    assert seen(folders) == (said, said, (str(path),))


def test_quotes_of_either_kind_are_no_part_of_a_path(folders: Path) -> None:
    text = "kind: nvidia.com/gpu\ndeviceNodes: [{'path': '/nowhere/x'}]\n"
    (folders / "etc/site.yaml").write_text(text)
    said = [f"{folders}/etc/site.yaml names /nowhere/x, which does not exist"]
    assert seen(folders)[:2] == (said, said)


def test_a_specification_of_this_driver_fits(folders: Path) -> None:
    assert seen(folders) == ([], [], ())
    write(folders, "run/nvidia.yaml", DRIVER)
    (folders / "etc/other.json").write_text('{"kind": "rdma.example/nic", "path": "/nowhere"}')
    (folders / "etc/notes.txt").write_text("nvidia.com/gpu path: /nowhere\n")
    assert seen(folders) == ([], [], ())


@pytest.mark.parametrize(("name", "text"), [("etc/site.yaml", SPECIFICATION), ("run/nvidia.json", JSON)])
def test_a_specification_of_another_driver_is_named_by_both(folders: Path, name: str, text: str) -> None:
    write(folders, name, "550.54.14", text)
    path = str(folders / name)
    both = [
        f"{path} names {folders}/lib/libcuda.so.550.54.14, which does not exist",
        f"{path} is for driver 550.54.14",
    ]
    assert seen(folders) == (both, both, (path,))


def test_before_the_reboot_into_the_locked_driver_nothing_is_expected(folders: Path) -> None:
    write(folders, "run/nvidia.yaml", "550.54.14")
    assert seen(folders, loaded="550.54.14") == ([], [], ())


def test_a_long_text_is_searched_in_linear_time() -> None:
    for text in ("path" * 200_000, "path: " * 100_000, "hostPath:" + " " * 500_000, "/libcuda.so.1" * 50_000):
        gpuprov_cdi.PATH.findall(text)
        gpuprov_cdi.LIBRARY.findall(text)
