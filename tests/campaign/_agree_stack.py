"""Changes of a stack that contradict a promise: modules, units, GPUs, CUDA, NCCL, containers, scratch."""

from __future__ import annotations

from random import Random

from tests.campaign._agree_change import (
    RELOAD,
    Change,
    Draw,
    Effect,
    added,
    locked_units,
    put,
    unit_files,
)
from tests.campaign._agree_node import Place

OF_MODULES = ("driver.", "module.", "nouveau.", "kernel.", "profiling.")
MODPROBE = (
    *("install nvidia /bin/true", "blacklist nvidia", "alias nvidia nouveau"),
    *("install nvidia_uvm /bin/false", "options nvidia NVreg_RestrictProfilingToAdminUsers=0"),
)
DKMS = ("source_tree=/srv/src", "dkms_tree=/srv/dkms", "install_tree=/srv/modules")


def modprobe(dice: Random, place: Place) -> Change:
    """Draw a line of modprobe.d about NVIDIA's modules, or the removal of gpuprov's."""
    path = "/etc/modprobe.d/gpuprov-nouveau.conf"
    if dice.random() < 0.2:
        return Change("modprobe.d", f"{path} removed", f"rm {path}", (path,), checks=("nouveau.blacklist",))
    return added("modprobe.d", "/etc/modprobe.d/zz-site.conf", dice.choice(MODPROBE), *OF_MODULES)


def module(dice: Random, place: Place) -> Change:
    """Draw a second module of NVIDIA's name, or a setting of DKMS under which the next kernel gets none."""
    folder, kind = f"/lib/modules/{place.node.kernel}", "kernel module"
    way = dice.choice(("second", "settings", "none"))
    if way == "settings":
        return added(kind, "/etc/dkms/framework.conf", dice.choice(DKMS), *OF_MODULES)
    if way == "none":
        return added(kind, "/etc/dkms/nvidia.conf", 'AUTOINSTALL=""', *OF_MODULES)
    where = f"{folder}/updates/{dice.choice(('aaa', 'zzz'))}"
    indexes = tuple(f"{folder}/{path.name}" for path in place.at(folder).glob("modules.*"))
    do = f"mkdir -p {where}; cp /root/other.ko {where}/nvidia.ko; depmod $K"
    name = f"a second nvidia.ko in {where}"
    return Change(kind, name, do, (where, *indexes), checks=OF_MODULES, effect="unknown")


MENDED = "systemctl restart nvidia-persistenced gpuprov-gpu-modes gpuprov-gpu-clocks"
"""Commands that set every GPU again, in this order."""
FOLDER = "/etc/systemd/system"
SLEEPS = "[Service]\\nExecStart=/bin/sleep inf\\n[Install]\\nWantedBy=multi-user.target\\n"
NEVER = "[Unit]\\nConditionPathExists=/none\\n"
NOTHING = "[Service]\\nExecStart=\\nExecStart=/bin/true\\n"


def unit(dice: Random, place: Place) -> Change:
    """Draw a unit of the lock, and how it is stopped, switched off or replaced."""
    check, name = dice.choice(sorted(locked_units(place).items()))
    ways = ["disabled", "masked"]
    ways += [] if name.endswith(".path") else ["replaced", "drop-in"]
    ways += ["condition"]
    ways += [] if name.startswith("gpuprov-") else ["stopped"]  # these end after their work
    way, path = dice.choice(ways), f"{FOLDER}/{name}"
    do = {
        "stopped": f"systemctl stop {name}",
        "disabled": f"systemctl disable --quiet {name}",
        "masked": f"ln -sf /dev/null {path}; {RELOAD}",
        "replaced": f"rm -f {path}; printf '{SLEEPS}' >{path}; {RELOAD}",
        "condition": f"mkdir -p {path}.d; printf '{NEVER}' >{path}.d/site.conf; {RELOAD}",
        "drop-in": f"mkdir -p {path}.d; printf '{NOTHING}' >{path}.d/site.conf; {RELOAD}",
    }[way]
    undo = f"{RELOAD}; {MENDED if check.startswith('gpu.') else f'systemctl start {name}'}"
    checks = (check, f"{check.partition('.')[0]}.")
    return Change("unit", f"{name} {way}", do, unit_files(place, name), undo=undo, checks=checks)


GPU = (
    ("-pm 0", "persistence", "gpu.persistence"),
    ("-rac", "application_clocks", "gpu.clocks"),  # without an effect on GPUs with locked clocks
    ("-rgc", "locked_clocks", "gpu.clocks"),
    ("-pl 250", "power_limit", "gpu.power_limit"),
    ("-c 3", "compute_mode", "gpu.compute_mode"),
    ("-e 0", "ecc", "gpu.ecc_pending"),
)


def gpu(dice: Random, place: Place) -> Change:
    """Draw a setting of one GPU."""
    number = dice.randrange(place.group.hardware.gpu_count)
    option, setting, check = dice.choice(GPU)
    effect: Effect = "unknown" if place.group.setting(setting) is None else "breaks"
    do = f"nvidia-smi -i {number}"
    undo = f"{do} -c 0; {do} -e 1; {do} -pm 1; {MENDED}"
    return Change("GPU", f"{do} {option}", f"{do} {option}", undo=undo, checks=(check, "gpu."), effect=effect)


def cuda(dice: Random, place: Place) -> Change | None:
    """Draw another default toolkit, or one without a package; None if the lock has no CUDA."""
    if not place.group.components.cuda:
        return None
    script, link, other = "/etc/profile.d/gpuprov-cuda.sh", "/usr/local/cuda", "/usr/local/cuda-11.8"
    name, do, path = dice.choice(
        (
            (f"{link} to another folder", f"ln -sfn /opt/cuda {link}", link),
            (f"{script} removed", f"rm {script}", script),
            (f"{other} without a package", f"mkdir -p {other}/bin", other),
        )
    )
    return Change("cuda", name, do, (path,), checks=("cuda.",))


def nccl(dice: Random, place: Place) -> Change | None:
    """Draw a line of NCCL's files, or the removal of one; None if the lock has no NCCL."""
    if not place.group.components.nccl:
        return None
    text = dice.choice(("NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME=lo", ""))
    if not text:
        path = "/etc/nccl.conf"
        return Change("nccl.conf", f"{path} removed", f"rm {path}", (path,), checks=("nccl.",))
    path = dice.choice(("/etc/nccl.conf", "/root/.nccl.conf"))
    return added("nccl.conf", path, text, "nccl.", first=True)  # libnccl takes the first line of a name


DAEMON = "/etc/docker/daemon.json"
RUNTIME = "/etc/nvidia-container-runtime/config.toml"
CONTAINERD = "/etc/containerd/config.toml"
PODMAN = "/etc/containers/containers.conf.d/gpuprov.conf"
EDIT = 'python3 -c \'import json; p = "{}"; d = json.load(open(p)); {}; json.dump(d, open(p, "w"))\''
DEVICE = "devices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/none}]}}]"
ENGINES = {
    "a smaller /dev/shm": (DAEMON, EDIT.format(DAEMON, 'd["default-shm-size"] = "64m"')),
    "no runtimes": (DAEMON, EDIT.format(DAEMON, 'd.pop("runtimes", 0)')),
    "another cgroup driver": (DAEMON, EDIT.format(DAEMON, 'd["exec-opts"] = []')),
    "emptied": (DAEMON, f"echo '{{}}' >{DAEMON}"),
    "no-cgroups": (RUNTIME, f"sed -i -E 's/^#? *no-cgroups.*/no-cgroups = true/' {RUNTIME}"),
    "another mode": (RUNTIME, f"sed -i -E 's/^mode = .*/mode = \"csv\"/' {RUNTIME}"),
    "another root": (RUNTIME, f"sed -i -E 's,^#? *root = .*,root = \"/srv\",' {RUNTIME}"),
    "toolkit's file removed": (RUNTIME, f"rm {RUNTIME}"),
    "no control groups by systemd": (CONTAINERD, f"sed -i -E s/SystemdCgroup/Systemd_Cgroup/ {CONTAINERD}"),
    "no nvidia runtime": (CONTAINERD, f"sed -i -E s/runtimes.nvidia/runtimes.other/ {CONTAINERD}"),
    "containerd's file removed": (CONTAINERD, f"rm {CONTAINERD}"),
    "Podman's file emptied": (PODMAN, f"echo >{PODMAN}"),
    "Podman's limits in another table": (PODMAN, f"sed -i s/containers]/network]/ {PODMAN}"),
    "a device that is missing": (
        "/etc/cdi/site.yaml",
        put("/etc/cdi/site.yaml", f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n{DEVICE}"),
    ),
}
"""Name → file, and the commands that change it."""


SPECIFICATION = "/var/run/cdi/nvidia.yaml"
OF_CDI = {"removed": "rm", "emptied": "truncate -s0", "private": "chmod 600"}


def containers(dice: Random, place: Place) -> Change | None:
    """Draw a setting of an engine or of NVIDIA's toolkit in its file, or a change of a CDI specification;
    None if the file that was drawn is missing.
    """
    if dice.random() < 0.2:
        way = dice.choice(sorted(OF_CDI))
        do, again = f"{OF_CDI[way]} {SPECIFICATION}", "systemctl start nvidia-cdi-refresh"
        undo, checks = f"rm -f {SPECIFICATION}; {again}", ("container_toolkit.",)
        return Change("containers", f"{SPECIFICATION} {way}", do, undo=undo, checks=checks)
    name = dice.choice(sorted(ENGINES))
    path, do = ENGINES[name]
    if not (place.has(path) or name == "a device that is missing"):
        return None
    checks = ("docker.", "containerd.", "podman.", "container_toolkit.")
    # The toolkit's defaults are as shipped.
    effect: Effect = "unknown" if name == "toolkit's file removed" else "breaks"
    return Change("containers", f"{name} in {path}", do, (path,), checks=checks, effect=effect)


def scratch(dice: Random, place: Place) -> Change | None:
    """Draw a scratch file system that is not mounted, now or at the next boot; None if none is stated."""
    stated = place.group.setting("scratch")
    if not stated:
        return None
    mount, fstab, rules = stated[0]["mount"], "/etc/fstab", "/etc/udev/rules.d/90-gpuprov-scratch.rules"
    name, do, touches, undo = dice.choice(
        (
            ("unmounted", f"umount {mount}", (), f"mount {mount}"),
            ("not in fstab", f"sed -i '\\,{mount},d' {fstab}", (fstab,), RELOAD),
            ("without its udev rule", f"rm {rules}", (rules,), ""),
        )
    )
    return Change("scratch", f"{mount} {name}", do, touches, undo=undo, checks=("scratch.",))


OF_THE_STACK: tuple[Draw, ...] = (modprobe, module, unit, gpu, cuda, nccl, containers, scratch)
