"""Values in force and their origin: the effect of other files, links and variables on a setting."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpuprov.apply.converge import Convergence, _left
from gpuprov.apply.plan import NodePlan
from gpuprov.drift.judge import Difference, NodeDrift, judge
from gpuprov.drift.observations.nvidia_driver import _refused
from gpuprov.drift.text import difference
from gpuprov.history.store import _read, _written
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.loading import DryRun, Loading
from gpuprov.probe.parse.modules import Modprobe
from gpuprov.roles import Expectation
from gpuprov.roles.manager import OWN_FILES
from gpuprov.roles.overruling import APPLIED_BY
from gpuprov.roles.repositories import IN_ANOTHER_FILE
from tests import ROOT

NOBODY = {"logins": {}, "services": {}, "users": {}, "nvcc": [None, None]}
SITE = "/etc/profile.d/zz-site.sh:1"
DOCKER = """\
Id=docker.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
FragmentPath=/lib/systemd/system/docker.service
DropInPaths=/etc/systemd/system/docker.service.d/site.conf
ExecStart={{ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd{} -H fd:// ; ignore_errors=no ; }}
"""
DROP_IN = "/etc/systemd/system/docker.service.d/site.conf"
OF_SYSTEMD = {
    "text": "\n\n".join(
        f"Id={unit}\nLoadState=loaded\nUnitFileState=static"
        for units in APPLIED_BY.values()
        for unit in units
    )
}
"""Units that apply settings at boot, as systemd's package has them."""
COMMANDS = {
    "/lib/systemd/system/docker.service": ["/lib/systemd/system/docker.service:9"],
    DROP_IN: [f"{DROP_IN}:3"],
}


def seen(check: str, expected: Any, **collectors: Any) -> Difference | None:
    """Return the difference of a check by these answers of collectors, or None."""
    found = judge("node", Facts("node", "", 0.0, collectors), [Expectation(check, expected, "role")]).drift
    return found[0] if found else None


def given(whose: str, name: str, value: str) -> dict[str, Any]:
    """Return the variables of a node on which one kind of process gets a variable."""
    return {**NOBODY, whose: {name: [value, SITE]}}


@pytest.mark.parametrize("whose", ["logins", "services", "users", "commands", "terminals", "unprivileged"])
def test_a_variable_goes_before_nccl_s_file_wherever_it_is_set(whose: str) -> None:
    nccl = {"conf": "NCCL_DEBUG=WARN\n", "own": {}, "libraries": {}}
    stated = {"NCCL_DEBUG": "WARN"}
    found = seen("nccl.configuration", stated, nccl=nccl, variables=given(whose, "NCCL_DEBUG", "TRACE"))
    assert found
    assert (found.actual, found.by) == ({"NCCL_DEBUG": "TRACE"}, (SITE,))
    assert seen("nccl.configuration", stated, nccl=nccl, variables=given(whose, "NCCL_DEBUG", "WARN")) is None


def test_a_file_of_nccl_s_that_only_root_can_read_is_not_as_stated() -> None:
    nccl = {"conf": "NCCL_DEBUG=WARN\n", "closed": True, "own": {}, "libraries": {}}
    found = seen("nccl.configuration", {"NCCL_DEBUG": "WARN"}, nccl=nccl, variables=NOBODY)
    assert found
    assert (found.actual, found.by) == ({"NCCL_DEBUG": "WARN, for root alone"}, ("/etc/nccl.conf",))


def test_a_login_s_own_file_goes_before_nccl_s() -> None:
    nccl = {"conf": "NCCL_DEBUG=WARN\n", "own": {"/root/.nccl.conf": "NCCL_DEBUG=TRACE\n"}, "libraries": {}}
    found = seen("nccl.configuration", {"NCCL_DEBUG": "WARN"}, nccl=nccl, variables=NOBODY)
    assert found
    assert (found.actual, found.by) == ({"NCCL_DEBUG": "TRACE"}, ("/root/.nccl.conf",))


def test_another_file_by_a_variable_is_another_configuration() -> None:
    nccl = {"conf": "NCCL_DEBUG=WARN\n", "own": {}, "libraries": {}}
    variables = given("logins", "NCCL_CONF_FILE", "/srv/nccl.conf")
    found = seen("nccl.configuration", {"NCCL_DEBUG": "WARN"}, nccl=nccl, variables=variables)
    assert found
    other = {"NCCL_DEBUG": "as /srv/nccl.conf says", "NCCL_CONF_FILE": "/srv/nccl.conf"}
    assert (found.actual, found.by) == (other, (SITE,))


OFF = {"NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize("stated", [{}, {"NCCL_DEBUG": "WARN"}])
@pytest.mark.parametrize(
    "where", ["logins", "services", "users", "commands", "terminals", "/etc/nccl.conf", "/root/.nccl.conf"]
)
def test_a_variable_that_changes_connections_is_named_wherever_it_is_set(
    where: str, stated: dict[str, str]
) -> None:
    in_file = "NCCL_DEBUG=WARN\n" if stated else ""
    nccl: dict[str, Any] = {"conf": in_file, "own": {}, "libraries": {}}
    variables = given(where, "NCCL_P2P_DISABLE", "1") if "/" not in where else NOBODY
    if where == "/etc/nccl.conf":
        nccl["conf"] += "NCCL_P2P_DISABLE=1\n"
    elif "/" in where:
        nccl["own"] = {where: "NCCL_P2P_DISABLE=1\n"}
    found = seen("nccl.configuration", stated, nccl=nccl, variables=variables)
    assert found
    assert found.expected == {"NCCL_P2P_DISABLE": None}
    assert (found.actual, found.by) == (OFF, (where if "/" in where else SITE,))
    if where in ("logins", "/etc/nccl.conf"):
        assert seen("nccl.configuration", {**stated, **OFF}, nccl=nccl, variables=variables) is None


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_HOME", "NCCL_TOPO_DUMP_FILE", "OMP_NUM_THREADS"])
def test_a_variable_that_changes_no_connection_is_the_site_s_own(name: str) -> None:
    nccl = {"conf": f"{name}=1\n", "own": {}, "libraries": {}}
    assert seen("nccl.configuration", {}, nccl=nccl, variables=given("logins", name, "1")) is None


def test_the_first_line_of_nccl_s_file_counts_as_for_libnccl() -> None:
    nccl = {"conf": "NCCL_DEBUG=TRACE\nNCCL_DEBUG=WARN\n NCCL_P2P_DISABLE=1\n", "own": {}, "libraries": {}}
    found = seen("nccl.configuration", {"NCCL_DEBUG": "WARN"}, nccl=nccl, variables=NOBODY)
    assert found
    assert found.actual == {"NCCL_DEBUG": "TRACE"}


def test_a_link_counts_by_where_it_leads_in_the_end() -> None:
    row = {
        "path": "/usr/local/cuda",
        "kind": "link",
        "mode": "0777",
        "owner": "root",
        "group": "root",
        "size": 1,
    }
    link = {**row, "sha256": None, "target": "/opt/cuda-12.6", "leads_to": "/opt/cuda-12.6"}
    found = seen("cuda.default", "/usr/local/cuda-12.8", files=[link])
    assert found
    assert (found.actual, found.by) == ("/opt/cuda-12.6", ("/usr/local/cuda",))


def test_the_compiler_that_a_login_finds_is_judged_too() -> None:
    home = "/usr/local/cuda"
    variables = {**given("logins", "CUDA_HOME", home), "nvcc": ["/opt/bin/nvcc", SITE]}
    found = seen("cuda.environment", {"CUDA_HOME": home, "nvcc": f"{home}/bin/nvcc"}, variables=variables)
    assert found
    assert (found.actual, found.by) == ({"nvcc": "/opt/bin/nvcc"}, (SITE,))


def test_a_variable_that_only_root_s_login_has_is_not_set() -> None:
    home, wanted = "/usr/local/cuda", {"CUDA_HOME": "/usr/local/cuda", "nvcc": "/usr/local/cuda/bin/nvcc"}
    variables = {**given("logins", "CUDA_HOME", home), "nvcc": [wanted["nvcc"], None]}
    assert seen("cuda.environment", wanted, variables=variables) is None
    variables["unprivileged"] = {"CUDA_HOME": [None, "/etc/profile"]}
    found = seen("cuda.environment", wanted, variables=variables)
    assert found
    assert (found.actual, found.by) == ({"CUDA_HOME": None}, ("/etc/profile",))


def test_limits_name_the_line_that_counts() -> None:
    rows = [
        [f"/etc/security/limits.d/90.conf:{at}", f"{who} - nofile 8"] for at, who in enumerate(("*", "root"))
    ]
    site = ["/etc/security/limits.d/zz.conf:1", "* soft nofile 4"]
    found = seen("tuning.limits", {"nofile": 8}, limits={"pam": [*rows, site], "systemd": ""})
    assert found
    assert found.by == ("/etc/security/limits.d/zz.conf:1",)


@pytest.mark.parametrize(("inherited", "actual"), [("8", None), ("4", {"nofile": "4, 8"})])
def test_a_login_without_a_line_has_the_limit_of_its_service(inherited: str, actual: Any) -> None:
    limits = {"pam": [["/etc/security/limits.d/90.conf:1", "* - nofile 8"]]}
    systemd = f"DefaultLimitNOFILE={inherited}\nDefaultLimitNOFILESoft={inherited}\n"
    found = seen("tuning.limits", {"nofile": 8}, limits={**limits, "systemd": systemd})
    assert (found.actual if found else None) == actual


def test_systemd_s_default_names_its_file() -> None:
    place = "/etc/systemd/system.conf.d/zz.conf:2"
    limits = {
        "pam": [],
        "systemd": "DefaultLimitNOFILE=4\n",
        "systemd_lines": [[place, "DefaultLimitNOFILE=4"]],
    }
    found = seen("tuning.service_limits", {"nofile": 8}, limits=limits)
    assert found
    assert found.by == (place,)


def test_the_next_boot_takes_the_last_word_on_a_parameter() -> None:
    rows = [
        ["/etc/sysctl.d/90.conf:1", "vm.swappiness", "1"],
        ["/etc/sysctl.d/99.conf:1", "vm.swappiness", "60"],
    ]
    found = seen("tuning.sysctl_at_boot", {"vm.swappiness": "1"}, boot_sysctls=rows, units=OF_SYSTEMD)
    assert found
    assert (found.actual, found.by) == ({"vm.swappiness": "60"}, ("/etc/sysctl.d/99.conf:1",))
    rows[1][2] = ""  # the line `-vm.swappiness`
    found = seen("tuning.sysctl_at_boot", {"vm.swappiness": "1"}, boot_sysctls=rows, units=OF_SYSTEMD)
    assert found
    assert (found.actual, found.by) == ({"vm.swappiness": None}, ("/etc/sysctl.d/99.conf:1",))


def test_the_kernel_s_command_line_goes_before_modprobe_d() -> None:
    ours = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    system = {"cmdline": "quiet nvidia.NVreg_RestrictProfilingToAdminUsers=1", "kernel": "6.1", "uid": 0}
    modprobe = [["/etc/modprobe.d/gpuprov-profiling.conf:3", ours]]
    found = seen("profiling.counters", "everybody", modprobe=modprobe, system=system)
    assert found
    assert (found.actual, found.by) == ("root", ("kernel command line",))


def test_a_daemon_with_another_file_has_nothing_of_ours() -> None:
    units = {"text": DOCKER.format(" --config-file=/srv/daemon.json"), "commands": COMMANDS}
    ours = {"value": {"default-shm-size": "1g"}}
    found = seen("docker.config", {"default-shm-size": "1g"}, daemon_json=ours, units=units)
    assert found
    assert found.by == (f"{DROP_IN}:3",)
    units["text"] = DOCKER.format(" --config-file /etc/docker/daemon.json")
    assert seen("docker.config", {"default-shm-size": "1g"}, daemon_json=ours, units=units) is None


def test_containerd_with_another_file_has_nothing_of_ours() -> None:
    text = DOCKER.format(" --config /srv/c.toml").replace("docker", "containerd")
    found = seen("containerd.config", {"enable_cdi": True}, containerd={"dump": ""}, units={"text": text})
    assert found
    assert found.by == ("/lib/systemd/system/containerd.service",)


@pytest.mark.parametrize(
    ("commands", "state"),
    [
        ({DROP_IN: ["/etc/x:3"]}, "enabled, with another command"),
        ({DROP_IN: [""]}, None),
        ({"/lib/systemd/system/docker.service": ["/lib/x:9"]}, None),
    ],
    ids=["theirs", "ours", "the package's"],
)
def test_a_unit_of_ours_starts_what_we_say(commands: dict[str, list[str]], state: str | None) -> None:
    text = DOCKER.format("").replace("Id=docker", "Id=gpuprov-gpu-clocks")
    found = seen("gpu.clocks_unit", "enabled", units={"text": text, "commands": commands})
    assert (found and found.actual) == state


def test_a_command_of_the_packages_is_no_reason_for_a_unit_that_does_not_run() -> None:
    text = DOCKER.format("").replace("Id=docker", "Id=gpuprov-gpu-clocks").replace("=active", "=inactive")
    units = {"text": text, "commands": {"/lib/systemd/system/docker.service": ["/lib/x:9"]}}
    found = seen("gpu.clocks_unit", "enabled", units=units)
    assert found
    assert (found.actual, found.by) == ("enabled, but inactive", ())


def test_a_mount_unit_goes_before_fstab() -> None:
    unit = "/etc/systemd/system/scratch.mount"
    row = {"filesystem": "ext4", "fstab": "UUID=1", "read_ahead_kib": None, "unit": unit}
    found = seen("scratch.at_boot", {"/scratch": "by UUID"}, scratch={"/scratch": row})
    rule = {"/scratch": {**row, "rule": [128, "/etc/udev/rules.d/99-site.rules:1"]}}
    ahead = seen("scratch.read_ahead_at_boot", {"/scratch": 4096}, scratch=rule, units=OF_SYSTEMD)
    assert ahead
    assert (ahead.actual, ahead.by) == ({"/scratch": 128}, ("/etc/udev/rules.d/99-site.rules:1",))
    assert found
    assert (found.actual, found.by) == ({"/scratch": unit}, (unit,))


def test_a_file_system_in_the_place_of_scratch_is_left_to_no_role() -> None:
    row = {"fstab": None, "read_ahead_kib": None, "unit": None}
    stated = {"/a": "xfs", "/b": "xfs"}
    mounted = {"/a": {**row, "filesystem": "ext4"}, "/b": {**row, "filesystem": None}}
    found = seen("scratch.filesystem", stated, scratch=mounted)
    assert found
    assert found.actual == {"/a": "ext4"}
    mounted["/a"]["filesystem"] = "xfs"
    assert seen("scratch.filesystem", stated, scratch=mounted) is None


def test_holds_that_apt_ignores_are_none() -> None:
    packages = {"manager": "dpkg", "text": "libcuda1\tamd64\t1\tx\thold ok installed", "interrupted": False}
    nothing: dict[str, Any] = {"files": {}, "keyrings": {}, "preferences": {}}
    sources = {**nothing, "config": 'APT::Ignore-Hold "true";', "cleared": ["/etc/apt/apt.conf.d/99:1"]}
    found = seen("pins.hold", ["libcuda1"], packages=packages, sources=sources)
    assert found
    assert found.by == ("/etc/apt/apt.conf.d/99:1",)
    assert seen("pins.hold", ["libcuda1"], packages=packages, sources={**nothing, "config": ""}) is None


def test_what_no_package_brought_is_named_with_what_leads_there() -> None:
    raw = {
        "driver": ["/usr/bin/nvidia-uninstall"],
        "toolkits": ["/usr/local/cuda-11.8"],
        "libraries": [
            ["/opt/libcuda.so.1", "/etc/ld.so.conf.d/0.conf:1"],
            ["/usr/local/lib/libcudnn.so.8", None],
        ],
    }
    driver = seen("driver.unpackaged", [], unpackaged=raw)
    assert driver
    assert driver.actual == ["/usr/bin/nvidia-uninstall", "/opt/libcuda.so.1"]
    assert driver.by == ("/etc/ld.so.conf.d/0.conf:1",)
    for check, path in {"cuda": "/usr/local/cuda-11.8", "cudnn": "/usr/local/lib/libcudnn.so.8"}.items():
        found = seen(f"{check}.unpackaged", [], unpackaged=raw)
        assert found
        assert found.actual == [path]
    assert seen("nccl.unpackaged", [], unpackaged=raw) is None


@pytest.mark.parametrize("why", ["/etc/ld.so.preload:1", "LD_PRELOAD in /etc/profile.d/zz-site.sh:1"])
def test_a_library_of_any_name_that_is_loaded_first_is_named_once(why: str) -> None:
    raw = {"driver": [], "toolkits": [], "libraries": [["/opt/libsite.so", why], ["/opt/libcudart.so", why]]}
    driver = seen("driver.unpackaged", [], unpackaged=raw)
    assert driver
    assert (driver.actual, driver.by) == (["/opt/libsite.so", "/opt/libcudart.so"], (why,))
    assert seen("cuda.unpackaged", [], unpackaged=raw) is None


def test_a_source_of_others_is_named_with_its_line() -> None:
    row = ["/etc/apt/sources.list.d/site.list:1", "file:/srv/extra/", "trusted=yes", ["libcuda1"]]
    found = seen("repositories.foreign", [], offers=[row])
    assert found
    assert found.actual == ["file:/srv/extra/ (trusted=yes) offers libcuda1"]
    assert found.by == ("/etc/apt/sources.list.d/site.list:1",)


MIRROR = "http://mirror/cuda"
OURS = f"Types: deb\nURIs: {MIRROR}/\nSuites: /\nSigned-By: /k.gpg\n"
APT = {"keyrings": {}, "preferences": {}, "config": "", "cleared": []}


def test_another_file_for_a_repository_of_the_lock_is_named() -> None:
    ours, other = "/etc/apt/sources.list.d/gpuprov.sources", "/etc/apt/sources.list.d/site.list"
    beside = {ours: OURS, other: f"deb [trusted=yes] {MIRROR} /\n"}
    found = seen("repositories.sources", [f"{MIRROR} /"], sources={**APT, "files": beside})
    assert found
    assert (found.actual, found.by) == ([f"{MIRROR} / in another file"], (other,))
    alone = {ours: OURS, other: "deb http://mirror/elsewhere /\n"}
    assert seen("repositories.sources", [f"{MIRROR} /"], sources={**APT, "files": alone}) is None


def test_a_stanza_has_each_suite_at_each_uri() -> None:
    path = "/etc/apt/sources.list.d/site.sources"
    text = f"Types: deb\nURIs: http://a/ {MIRROR}//\nSuites: x y\nComponents: main\n"
    files = {"keyrings": {}, "preferences": {}, "config": "", "cleared": [], "files": {path: text}}
    found = seen("repositories.sources", ["http://a y", f"{MIRROR} x", f"{MIRROR} z"], sources=files)
    assert found
    both = [f"http://a y {IN_ANOTHER_FILE}", f"{MIRROR} x {IN_ANOTHER_FILE}"]
    assert (found.actual, found.by) == (both, (path,))


def test_drift_and_the_role_mean_the_same_file() -> None:
    stated = yaml.safe_load((ROOT / "roles/repositories/vars/main.yml").read_text(encoding="utf-8"))
    assert stated["__repositories_forms"]["apt"]["file"] == OWN_FILES["apt"]


STILL = Difference(
    "tuning.limits", {"nofile": 8}, {"nofile": 4}, "error", "system_tuning", reboot=False, by=("/x:1",)
)


def test_a_line_of_drift_ends_with_who_says_so() -> None:
    assert difference(STILL) == "tuning.limits expected nofile 8, is nofile 4, by /x:1"


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        ({"libcuda1": None}, "is nothing"),
        ({"libcuda1": None, "nvidia-smi": None}, "is none of them"),
        ({"libcuda1": None, "nvidia-smi": "1"}, "is libcuda1 nothing, nvidia-smi 1"),
    ],
)
def test_a_fresh_node_has_none_of_what_is_expected(actual: dict[str, str | None], words: str) -> None:
    expected = dict.fromkeys(actual, "2")
    found = Difference("driver.packages", expected, actual, "error", "nvidia_driver", reboot=False)
    assert difference(found).endswith(f" 2, {words}")


def test_apply_fails_where_a_role_has_run_and_its_setting_is_still_overruled() -> None:
    result = Convergence(drift={"gpu1": NodeDrift("gpu1", "drifted", (STILL,))})
    plan = NodePlan("gpu1", ("preflight", "system_tuning"), reboot=False, because=(STILL,), beyond=())
    [event] = _left(plan, result).failed
    assert event["role"] == "system_tuning"
    assert event["msg"].startswith("tuning.limits is still nofile 4, overruled by /x:1; remove that setting")


def test_what_could_not_be_read_is_no_preference_to_remove() -> None:
    unread = Difference("pins.candidates", [], "unknown: no answer", "error", "package_pins", reboot=False)
    result = Convergence(drift={"gpu1": NodeDrift("gpu1", "drifted", (unread,))})
    plan = NodePlan("gpu1", ("package_pins",), reboot=False, because=(unread,), beyond=())
    [event] = _left(plan, result).failed
    ends = "unknown: no answer; for the cause: gpuprov doctor gpu1, then: gpuprov apply -l gpu1"
    assert event["msg"].endswith(ends)


def test_what_no_setting_causes_has_its_own_remedy() -> None:
    changed = Difference(
        "pins.files", [], ["nvidia-smi /x is missing"], "error", "package_pins", reboot=False
    )
    result = Convergence(drift={"gpu1": NodeDrift("gpu1", "drifted", (changed, STILL))})
    plan = NodePlan("gpu1", ("package_pins", "system_tuning"), reboot=False, because=(changed,), beyond=())
    [event] = _left(plan, result).failed
    assert "pins.files is still nvidia-smi /x is missing" in event["msg"]
    assert "apt-get install --reinstall --allow-change-held-packages NAME=VERSION" in event["msg"]
    assert event["msg"].endswith("; remove that setting or state it in the lock, then: gpuprov apply -l gpu1")


def test_what_other_roles_would_mend_is_no_failure_of_those_that_ran() -> None:
    result = Convergence(drift={"gpu1": NodeDrift("gpu1", "drifted", (STILL,))})
    plan = NodePlan("gpu1", ("preflight", "docker"), reboot=False, because=(), beyond=())
    assert _left(plan, result).ok


def test_history_keeps_who_said_it_and_reads_runs_that_named_nobody() -> None:
    node = NodeDrift("gpu1", "drifted", (STILL,))
    assert _read("gpu1", "drifted", None, _written(node)) == node
    older = '[["tuning.limits", 8, 4, "error", "system_tuning", false]]'
    assert _read("gpu1", "drifted", None, older).drift[0].by == ()


def test_the_lines_about_gpus_are_searched_once_for_all_of_them() -> None:
    lines = {("alias", "pci:v1"): ("/etc/modprobe.d/x.conf:1", "vfio"), ("alias", "pci:v2"): ("y", "nvidia")}
    run = DryRun({"nvidia": "insmod /x/nvidia.ko", "nvidia-uvm": "insmod /x/nvidia-uvm.ko"})
    loading = Loading({}, ("pci:v1", "pci:v2"), frozenset())
    first, second = _refused(loading, run, Modprobe({}, {}, {}, {}, lines, {}), ())
    assert first == ("a GPU's PCI id loads nothing", ("/etc/modprobe.d/x.conf:1",))
    assert first[1] is second[1]


@pytest.mark.parametrize(
    ("program", "by"),
    [("/bin/true", (f"{DROP_IN}:3",)), ("/usr/sbin/dockerd", ())],
    ids=["another", "its own"],
)
def test_a_drop_in_of_sshd_is_named_if_it_starts_another_program(program: str, by: tuple[str, ...]) -> None:
    """Check that a drop-in that starts sshd's own program is no reason for a unit that is off."""
    text = (
        DOCKER.format("")
        .replace("Id=docker", "Id=ssh")
        .replace("argv[]=/usr/sbin/dockerd", f"argv[]={program}")
    )
    state = "enabled" if by else "disabled"
    units = {
        "text": text.replace("UnitFileState=enabled", f"UnitFileState={state}"),
        "commands": COMMANDS,
        "programs": {"/lib/systemd/system/docker.service": ["/usr/sbin/dockerd"]},
    }
    found = seen("ssh.at_boot", "enabled", units=units)
    assert found
    assert found.by == by
