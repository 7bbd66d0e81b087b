"""Reasons why the driver is not loaded, or a new kernel lacks its module: the same for both witnesses.

The outputs of modprobe are those of kmod 30 on trees with stub modules.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuprov.drift.judge import Difference, judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.loading import DryRun
from gpuprov.roles import Expectation
from gpuprov.verify.observers import register
from gpuprov.verify.observers.module_loading import ADDED, BOOT_LINES, DEVICES, DKMS, HOOKS, loaded_by
from tests.unit.verify.nodes_on_paper import KERNEL, VERSION, Answers, locked_group, paper_node

FOLDER = f"/lib/modules/{KERNEL}/updates/dkms"
GPU = "pci:v000010DEd000020B2sv000010DEsd00001463bc03sc02i00"
DEBIAN = {
    "nvidia": "install modprobe -i nvidia-current $CMDLINE_OPTS \n",
    "nvidia-uvm": "install modprobe nvidia ; modprobe -i nvidia-current-uvm $CMDLINE_OPTS \n",
    GPU: "install modprobe -i nvidia-current $CMDLINE_OPTS \n",
    "nvidia-current": f"insmod {FOLDER}/nvidia-current.ko \n",
    "nvidia-current-uvm": f"insmod {FOLDER}/nvidia-current-uvm.ko \n",
}
NVIDIA = {
    "nvidia": f"insmod {FOLDER}/nvidia.ko \n",
    "nvidia-uvm": f"insmod {FOLDER}/nvidia.ko \ninsmod {FOLDER}/nvidia-uvm.ko \n",
    GPU: f"insmod {FOLDER}/nvidia.ko \n",
}
NOUVEAU = f"insmod /lib/modules/{KERNEL}/kernel/drivers/gpu/drm/nouveau/nouveau.ko \n"
REQUESTED = ("nvidia", "nvidia-uvm", GPU)
SITE = "/etc/modprobe.d/zz-site.conf:1"
GRUB = f"\tlinux\t/boot/vmlinuz-{KERNEL} root=/dev/sda1 ro quiet"


@dataclass(frozen=True)
class Node:
    """A node as modprobe's answers, the lines of its modprobe.d, and its command lines."""

    answers: dict[str, str] = field(default_factory=lambda: DEBIAN)
    lines: tuple[str, ...] = ()
    cmdline: str = "quiet"
    grub: str = ""
    absent: tuple[str, ...] = ()

    def drift(self) -> Difference | None:
        """Return drift's difference."""
        files = [f"{FOLDER}/nvidia-current.ko", f"{FOLDER}/nvidia.ko"]
        said = "\n".join(f"filename: {each}\nversion: {VERSION}\nlicense: NVIDIA" for each in files)
        arguments = {KERNEL: " ".join(self.grub.split()[2:])} if self.grub else {}
        kernels = {"boot": [KERNEL], "modules": [KERNEL], "headers": [], "grub_default": None}
        collectors = {
            "system": {"kernel": KERNEL, "cmdline": self.cmdline, "uid": 0},
            "kernels": {**kernels, "grub_environment": None, "grub_arguments": arguments},
            "disk_modules": {KERNEL: said},
            "loading": {"kernels": {KERNEL: self.answers}, "devices": [GPU], "absent": list(self.absent)},
            "modprobe": [[SITE, line] for line in self.lines],
        }
        expected = Expectation("driver.loading", [], "nvidia_driver", subject="running")
        found = judge("node", Facts("node", "", 0.0, collectors), [expected]).drift
        return found[0] if found else None

    def verify(self) -> list[str]:
        """Return what verify's observer finds."""

        def change(answers: Answers) -> None:
            """Replace the answers about modules by those of this node."""
            for name in [name for name in answers if "--show-depends" in name or name.startswith("test -e")]:
                del answers[name]
            for name, text in self.answers.items():
                option = "-b" if name in REQUESTED else "-i"
                answers[f"modprobe -S {KERNEL} {option} --show-depends {name}"] = (0, text, "")
            for name in ("nvidia-current", "nvidia-current-uvm", "nvidia", "nvidia-uvm"):
                path = f"{FOLDER}/{name}.ko"
                answers[f"test -e {path}"] = (int(path in self.absent), "", "")
            answers["uname -r"] = (0, KERNEL, "")
            answers["cat /proc/cmdline"] = (0, self.cmdline, "")
            answers[BOOT_LINES] = (0, f"{self.grub}\n" if self.grub else "", "")
            answers[DEVICES] = (0, f"{GPU}\n", "")
            config = "".join(f"{line}\n" for line in self.lines if line.startswith("options"))
            answers["modprobe --showconfig"] = (0, config, "")

        register()
        host: Any = paper_node("node", locked_group("node"), change).host
        found: list[str] = host.module_loading.hindrances(KERNEL)
        return found


def replaced(answers: dict[str, str], **texts: str) -> dict[str, str]:
    """Return the answers with other texts for nvidia, nvidia-uvm (`uvm`) or the GPU's id (`gpu`)."""
    names = {"nvidia": "nvidia", "uvm": "nvidia-uvm", "gpu": GPU, "current": "nvidia-current"}
    return {**answers, **{names[name]: text for name, text in texts.items()}}


@pytest.mark.parametrize(
    "node",
    [
        Node(),
        Node(NVIDIA),
        Node(replaced(NVIDIA, nvidia=NVIDIA["nvidia-uvm"]), ("softdep nvidia post: nvidia-uvm",)),
        Node(
            lines=("options nvidia NVreg_DeviceFileMode=0660", "options nvidia-current NVreg_ExcludedGpus=")
        ),
        Node(
            replaced(
                NVIDIA, nvidia="install /sbin/modprobe -i nvidia && modprobe nvidia-uvm \n" + NVIDIA["nvidia"]
            )
        ),
        Node(cmdline="rd.driver.blacklist=nvidia modprobe.blacklist=nouveau nvidia_drm.modeset=1"),
        Node(grub=GRUB),
    ],
    ids=["Debian", "NVIDIA", "softdep after it", "options", "more after it", "others blacklisted", "GRUB"],
)
def test_a_module_that_is_loaded_is_no_difference(node: Node) -> None:
    assert node.drift() is None
    assert node.verify() == []


@pytest.mark.parametrize(
    ("node", "said", "by"),
    [
        (
            Node(
                replaced(DEBIAN, nvidia="install /bin/false \n", gpu="install /bin/false \n"),
                ("install nvidia /bin/false",),
            ),
            "nvidia runs /bin/false",
            SITE,
        ),
        (Node(replaced(DEBIAN, nvidia="", gpu=""), ("blacklist nvidia",)), "nvidia loads nothing", SITE),
        (Node(replaced(DEBIAN, uvm=""), ("alias nvidia-uvm off",)), "nvidia-uvm loads nothing", SITE),
        (
            Node(replaced(DEBIAN, nvidia=NOUVEAU), ("softdep nvidia pre: nouveau",)),
            "nvidia loads nouveau first",
            SITE,
        ),
        (
            Node(replaced(NVIDIA, nvidia="insmod /lib/vfio.ko \n"), ("alias nvidia vfio",)),
            "nvidia loads vfio",
            SITE,
        ),
        (
            Node(replaced(NVIDIA, gpu=""), ("alias pci:v000010DEd* off",)),
            "a GPU's PCI id loads nothing",
            SITE,
        ),
        (Node(absent=(f"{FOLDER}/nvidia-current-uvm.ko",)), "nvidia-uvm has no file", None),
        (
            Node(
                replaced(
                    DEBIAN, current=f"insmod {FOLDER}/nvidia-current.ko NVreg_ExcludedGpus=0000:07:00.0 \n"
                ),
                ("options nvidia_current NVreg_ExcludedGpus=0000:07:00.0",),
            ),
            "NVreg_ExcludedGpus=0000:07:00.0",
            SITE,
        ),
        (
            Node(cmdline="quiet module_blacklist=nouveau,nvidia"),
            "nvidia is blacklisted on the kernel's command line",
            "kernel command line",
        ),
        (
            Node(grub=f"{GRUB} module_blacklist=nvidia_uvm"),
            "nvidia-uvm is blacklisted on the kernel's command line",
            "/boot/grub/grub.cfg",
        ),
    ],
)
def test_what_keeps_it_from_being_loaded_is_named_with_its_place(
    node: Node, said: str, by: str | None
) -> None:
    found = node.drift()
    assert found
    assert found.actual == [f"{said} (kernel {KERNEL})"] == node.verify()
    assert found.by == ((by,) if by else ())


def test_install_lines_that_lead_to_each_other_are_followed_once() -> None:
    run = DryRun({"nvidia": "install modprobe b\n" * 500, "b": "install modprobe nvidia; true\n" * 500})
    assert {step.what for step in run.steps("nvidia")} == {"true"}
    looping = replaced(DEBIAN, current="install modprobe nvidia\n")
    assert Node(looping).verify() == [f"nvidia loads nothing (kernel {KERNEL})"]


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("modprobe -i nvidia-current $CMDLINE_OPTS", "nvidia-current"),
        (" /sbin/modprobe --ignore-install nvidia x=1", "nvidia"),
        ("/bin/false", None),
        ("modprobe", None),
        ("", None),
    ],
)
def test_the_module_of_an_install_line(command: str, module: str | None) -> None:
    assert loaded_by(command) == module


GUARD = "/etc/default/grub.d/zz-gpuprov.cfg"
OURS = "/etc/kernel/header_postinst.d/zz-gpuprov"
RUN = ("/etc/kernel/postinst.d/dkms", "/etc/kernel/header_postinst.d/dkms", OURS)
CONF = "/usr/src/nvidia-current-535.309.01/dkms.conf:4"
BUILT = {
    "hooks": [*RUN, "/etc/kernel/postinst.d/initramfs-tools"],
    "grub": [GUARD],
    "dkms": "/usr/sbin/dkms",
    "off": False,
    "folders": [],
    "autoinstall": [["nvidia-current", VERSION, CONF, "yes"]],
}


ENTRY = "/etc/kernel/install.d/95-gpuprov.install"
ENTRIES = {"bls": True, "grub": [], "hooks": ["/usr/lib/kernel/install.d/40-dkms.install", ENTRY]}
"""Differences of a node whose kernels are boot entries."""


def obstacles(version: str | None, **changed: Any) -> tuple[Any, tuple[str, ...], list[str]]:
    """Return what drift and verify find, and the places that drift names."""
    raw = {**BUILT, **changed}
    expected = Expectation("driver.next_kernel", [], "nvidia_driver", subject=version)
    [found] = judge("node", Facts("node", "", 0.0, {"next_kernel": raw}), [expected]).drift or [None]

    def change(answers: Answers) -> None:
        """Replace the answers about DKMS's folders and builds."""
        folders = dict.fromkeys(("dkms_tree", "source_tree", "install_tree"), "")
        folders.update({name: value for _, name, value in raw["folders"]})
        builds = [f"AUTOINSTALL {value}" for _, each, _, value in raw["autoinstall"][-1:] if each == version]
        rows = [*(f"{name} {value}" for name, value in folders.items()), *builds]
        answers[f"test -f {GUARD}"] = (0 if raw["grub"] else 1, "", "")
        answers["test -d /boot/loader/entries"] = (0 if raw.get("bls") else 1, "", "")
        answers["command -v dkms"] = (0 if raw["dkms"] else 127, "", "")
        answers["test -f /etc/dkms/no-autoinstall"] = (0 if raw["off"] else 1, "", "")
        answers[HOOKS] = (0, "".join(f"{hook}\n" for hook in raw["hooks"]), "")
        answers[DKMS % version] = (0, "".join(f"{row}\n" for row in rows), "")

    register()
    host: Any = paper_node("node", locked_group("node"), change).host
    return found and found.actual, found.by if found else (), host.module_loading.obstacles(version)


@pytest.mark.parametrize(
    ("changed", "said", "by"),
    [
        ({"grub": []}, f"{GUARD} is missing", ()),
        ({"dkms": None}, "dkms is not installed", ()),
        ({"off": True}, "DKMS is switched off", ("/etc/dkms/no-autoinstall",)),
        ({"hooks": RUN[1:]}, f"{RUN[0]} does not run", (RUN[0],)),
        ({"hooks": RUN[:2]}, f"{OURS} does not run", ()),
        (
            {"folders": [["/etc/dkms/framework.conf.d/x.conf:1", "install_tree", "/opt/modules"]]},
            "install_tree is /opt/modules",
            ("/etc/dkms/framework.conf.d/x.conf:1",),
        ),
        ({"autoinstall": [["nvidia-current", VERSION, CONF, ""]]}, "AUTOINSTALL is not set", (CONF,)),
        (
            {"autoinstall": [*BUILT["autoinstall"], ["nvidia-current", VERSION, "/etc/dkms/n.conf:1", "no"]]},  # type: ignore[misc]
            "AUTOINSTALL is no",
            ("/etc/dkms/n.conf:1",),
        ),
        ({"autoinstall": []}, f"DKMS does not have driver {VERSION}", ()),
    ],
)
def test_what_keeps_a_new_kernel_from_its_module(
    changed: dict[str, Any], said: str, by: tuple[str, ...]
) -> None:
    assert obstacles(VERSION, **changed) == ([said], by, [said])


def test_a_new_kernel_gets_its_module() -> None:
    assert obstacles(VERSION) == (None, (), [])
    same = [["/etc/dkms/framework.conf:9", "install_tree", "/usr/lib/modules/"]]
    assert obstacles(VERSION, folders=same) == (None, (), [])


def test_without_builds_on_the_node_only_grub_counts() -> None:
    assert obstacles(None, dkms=None, autoinstall=[], hooks=[]) == (None, (), [])
    assert obstacles(None, grub=[]) == ([f"{GUARD} is missing"], (), [f"{GUARD} is missing"])


def test_where_kernels_are_boot_entries_their_own_programs_count() -> None:
    assert obstacles(VERSION, **ENTRIES) == (None, (), [])
    without = {**ENTRIES, "hooks": ENTRIES["hooks"][:1]}  # type: ignore[index]
    assert obstacles(VERSION, **without) == ([f"{ENTRY} does not run"], (), [f"{ENTRY} does not run"])
    builder = "/usr/lib/kernel/install.d/40-dkms.install"
    found, _, seen = obstacles(VERSION, **{**ENTRIES, "hooks": [ENTRY]})
    assert found == seen == [f"{builder} does not run"]


def test_only_modaliases_of_gpus_are_requested(tmp_path: Path) -> None:
    others = (GPU.replace("bc03", "bc06"), GPU.replace("10DE", "15B3"))
    for number, alias in enumerate((GPU, GPU, *others)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "modalias").write_text(f"{alias}\n")
    command = DEVICES.replace("/sys/bus/pci/devices", str(tmp_path))
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert said.split() == [GPU]


@pytest.mark.parametrize("image", ["", f"/boot/initrd.img-{KERNEL}"], ids=["newer", "older"])
def test_an_initramfs_with_an_older_driver(image: str) -> None:
    expected = Expectation("driver.initramfs", [], "nvidia_driver", subject="running")
    kernels = {"boot": [KERNEL], "modules": [KERNEL], "headers": [], "grub_default": None}
    collectors = {
        "system": {"kernel": KERNEL},
        "kernels": {**kernels, "grub_environment": None},
        "initramfs": {KERNEL: [image] if image else []},
    }
    found = judge("node", Facts("node", "", 0.0, collectors), [expected]).drift

    def change(answers: Answers) -> None:
        """Have an initramfs that is older than the driver and contains a module."""
        for name in answers:
            if name == ADDED:
                answers[name] = (0, "", "")
            elif "-nt $image" in name:
                answers[name] = (0, f"{image}\n", "")
            elif "lsinitramfs" in name:
                answers[name] = (0, "usr/lib/modules/6.1.0-56-amd64/updates/dkms/nvidia-current.ko\n", "")

    register()
    host: Any = paper_node("node", locked_group("node"), change).host
    assert host.module_loading.old_initramfs(KERNEL) == [each for one in found for each in one.actual]
    assert bool(found) == bool(image)
