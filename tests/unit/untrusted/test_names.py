"""Names from machines: real names are accepted, and names with another meaning for a program are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuprov import untrusted
from gpuprov.errors import NodeFailed

REAL: dict[Callable[[object], str], tuple[str, ...]] = {
    untrusted.kernel_release: (
        "6.1.0-56-amd64",
        "5.14.0-570.el9.x86_64",
        "5.14.0-427.13.1.el9_4.aarch64+64k-debug",
        "6.8.0-1021-nvidia-64k",
        "6.12.107+deb13-cloud-amd64",
        "5.15.167.4-microsoft-standard-WSL2",
        "6.11.0-rc3~bpo_test+",
        "4.18.0-553.el8_10.x86_64",
    ),
    untrusted.vermagic: (
        "6.1.0-56-amd64 SMP preempt mod_unload modversions ",
        "6.1.0-56-amd64 SMP preempt mod_unload modversions",
        "5.14.0-570.el9.x86_64 SMP preempt mod_unload modversions ",
        "6.8.0-1021-nvidia-64k SMP preempt mod_unload modversions aarch64",
        "6.6.9 SMP preempt_rt mod_unload RANDSTRUCT_0f9a",
        "6.1.0-rpi7 ",
    ),
    untrusted.compiler_line: (
        "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0",
        "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0",
        "gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-2)",
        "clang version 16.0.6 (https://github.com/llvm/llvm-project 7cbf1a2)",
    ),
    untrusted.host_name: ("gpu001", "gpu-1.example.org", "node_3", "10.0.0.1"),
    untrusted.device_name: ("nvme0n1p1", "mlx5_0", "ib0.8001", "enp1s0f0np0", "0000:3b:00.0"),
    untrusted.unit_name: (
        "docker.service",
        "getty@tty1.service",
        "-.mount",
        r"dev-disk-by\x2duuid-1.swap",
    ),
    untrusted.package_name: ("libc6:amd64", "nvidia-driver-535", "kernel-core", "g++", "NetworkManager"),
    untrusted.version: ("1:2.36-9+deb12u1", "535.309.01-0ubuntu1~24.04", "1.2^git3", "2.21.5-1+cuda12.4"),
    untrusted.file_name: ("nvidia-current-uvm.ko.zst", "10-gpuprov.conf", "modules.tar.gz"),
    untrusted.module_name: ("nvidia_uvm", "nvidia-current", "8021q"),
    untrusted.absolute_path: ("/usr/lib/modules/6.1/nvidia.ko", "/srv/two words/é", "/", "/a..b/.c"),
}
HOSTILE = (
    "",
    "6.1.0-{{ lookup('pipe','id') }}",
    "6.1.0 {{ lookup('pipe','id') }}",
    "6.1.0{% raw %}",
    "6.1.0-x;id",
    "6.1.0-x$(id)",
    "6.1.0-x\n",
    "6.1.0\x1b[31m",
    "../6.1.0",
    "6.1/../../x",
    "-oProxyCommand=id",
    "\u0663.\u0661",
    "x" * 5000,
    None,
    5,
    ["6.1.0"],
)


@pytest.mark.parametrize(("check", "text"), [(check, text) for check, all_ in REAL.items() for text in all_])
def test_what_machines_say_passes(check: Callable[[object], str], text: str) -> None:
    """Check that names of real machines are accepted."""
    assert check(text) == text


@pytest.mark.parametrize("check", REAL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text)[:20])
def test_what_could_be_something_else_is_refused(check: Callable[[object], str], text: object) -> None:
    with pytest.raises(NodeFailed) as refused:
        check(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("check", [each for each in REAL if each is not untrusted.absolute_path])
def test_no_name_holds_what_an_interpreter_acts_on(check: Callable[[object], str]) -> None:
    acted_on = "{}%$`\"'|&;<>*?!#\n\r\t\x0b\x0c"
    assert not [sign for sign in acted_on if any(_passes(check, f"{real}{sign}0") for real in REAL[check])]


def _passes(check: Callable[[object], str], text: str) -> bool:
    """Return whether a check accepts a text."""
    try:
        check(text)
    except NodeFailed:
        return False
    return True


def test_a_path_stays_where_it_is_said_to_be() -> None:
    for path in ("etc/passwd", "/srv/../etc", "/srv/.", "/a\nb", "/" + "a" * 4096):
        with pytest.raises(NodeFailed):
            untrusted.absolute_path(path)
