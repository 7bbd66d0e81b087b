"""A site's service, Dask's scheduler and workers with the network, name, home and key of lab nodes, over TLS.

The programs are this machine's own: a lab node has no gpuprov. What a controller is to others is the node's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from distributed import Security

from gpuprov.lab import Node
from gpuprov.lab.network import GATEWAY
from gpuprov.ssh.workers.certificates import make_certificates
from tests.lab.command_line import PROGRAM, gpuprov

DASK = str(Path(sys.executable).with_name("dask"))
CLOSED = ("--preload", "gpuprov.ssh.workers.closed")
SITE = "main"
KEY = "~/.ssh/fleet"
"""What the lock says of the key: each controller has one of its own there."""
READY_S = 180.0
TIMES = re.compile(r'"(\w*_at|at|run|seconds)": ("[^"]*"|[0-9.e-]+)')


@dataclass
class Controller:
    """Who drives nodes: a home with a key, and a node whose network and name it has, if it has one."""

    name: str
    home: Path
    node: Node | None = None
    tls: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """Its own home and state, the certificates, and no agent."""
        inherited = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
        return {**inherited, **self.tls, "HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A program, as this controller."""
        enter: tuple[str, ...] = ()
        if self.node:
            named = f'hostname {self.name} && exec "$@"'
            enter = ("nsenter", f"--net={self.node.link.path}", "unshare", "--uts", "sh", "-c", named, "sh")
        with (self.home / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*enter, *words], env=self.environment(), stdout=log, stderr=log, text=True
            )
        return self.process

    def end(self) -> None:
        """Kill what it runs."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def serve(self, scheduler: str, *words: str) -> None:
        """Become a worker, on the node's own address."""
        assert self.node
        how = ("--no-nanny", "--nthreads", "2", "--no-dashboard", "--protocol", "tls", *words)
        self.start(DASK, "worker", scheduler, "--name", self.name, "--host", self.node.address, *CLOSED, *how)

    def authorize(self, nodes: list[Node]) -> None:
        """Make its key, and let it into nodes."""
        folder = self.home / ".ssh"
        folder.mkdir(parents=True, mode=0o700)
        key = folder / "fleet"
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(key)]
        subprocess.run(make, check=True)
        public = key.with_suffix(".pub").read_text()
        for node in nodes:
            node.run("cat >>/root/.ssh/authorized_keys", input=public)


@dataclass
class Crew:
    """A coordinator on this machine, a site's service and scheduler beside it, and workers on controllers."""

    folder: Path
    here: Controller
    scheduler: Controller
    workers: list[Controller]
    service: Controller
    certificates: Path
    address: str = ""
    found: str = ""
    """Where the scheduler is."""

    @property
    def program(self) -> tuple[str, ...]:
        """What runs gpuprov as the coordinator."""
        return ("env", f"HOME={self.here.home}", sys.executable, "-m", "gpuprov")

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A command line of the coordinator's."""
        return gpuprov(self.folder, *words, code=code, program=self.program)

    def by_workers(self, verb: str, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """The same, by the workers."""
        return self.gpuprov(verb, *words, "--workers", self.address, code=code)

    def begin(self) -> None:
        """Start the scheduler, all workers and the service."""
        file = self.scheduler.home / "scheduler.json"
        file.unlink(missing_ok=True)
        scheduler = ""
        for each in (*self.workers, self.scheduler, self.service):
            (each.home / "log").write_text("")
        how = ("--host", str(GATEWAY), "--port", "0", "--protocol", "tls", "--no-dashboard")
        self.scheduler.start(DASK, "scheduler", *how, *CLOSED, "--scheduler-file", str(file))
        deadline = time.monotonic() + READY_S
        while not scheduler and time.monotonic() < deadline:
            time.sleep(0.2)
            if file.exists() and file.read_text():
                scheduler = json.loads(file.read_text())["address"]
        self.found = scheduler
        for worker in self.workers:
            worker.serve(scheduler)
        listen = f"{GATEWAY}:{free_port()}"
        own = ("--certificates", str(self.certificates), "--listen", listen, "--scheduler", scheduler)
        self.service.start(*PROGRAM, "workers", "serve", *own)
        self.address = f"tls://{listen}"
        while not self.all_there() and time.monotonic() < deadline:
            time.sleep(0.5)

    def all_there(self) -> bool:
        """Whether every worker has found the scheduler, and the service listens."""
        if "listening" not in (self.service.home / "log").read_text():
            return False
        return all("Registered to" in (worker.home / "log").read_text() for worker in self.workers)

    def end(self) -> None:
        """Kill all of it."""
        for each in (*self.workers, self.scheduler, self.service):
            each.end()


def but_for_times(document: str) -> str:
    """A document without what differs each time: when it was, and how long that took."""
    return TIMES.sub(r'"\1": …', document)


def certificates(folder: Path) -> dict[str, str]:
    """One certificate for all of them, as Dask's configuration in the environment."""
    made = Security.temporary()
    folder.mkdir()
    (folder / "ca.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    found = {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(folder / "ca.pem")}
    for part in ("CLIENT", "SCHEDULER", "WORKER"):
        found[f"DASK_DISTRIBUTED__COMM__TLS__{part}__CERT"] = str(folder / "ca.pem")
        found[f"DASK_DISTRIBUTED__COMM__TLS__{part}__KEY"] = str(folder / "key.pem")
    return found


def free_port() -> int:
    """A port of the machine's that nobody listens on now."""
    with socket.create_server((str(GATEWAY), 0)) as listener:
        return int(listener.getsockname()[1])


def state_own_keys(folder: Path) -> None:
    """Have the locks of a folder name a key that each controller has at home."""
    for path in folder.glob("*.lock.yml"):
        plain = yaml.safe_load(path.read_text())
        for group in plain["groups"].values():
            group["connection"]["identity_file"] = KEY
        path.write_text(yaml.safe_dump(plain, sort_keys=False))


@contextmanager
def crew(folder: Path, fleet: list[Node], controllers: list[Node]) -> Iterator[Crew]:
    """A coordinator, a scheduler and a worker on each controller, each with a key of its own on the fleet."""
    tls = certificates(folder / "tls")
    homes = folder / "homes"
    workers = [Controller(node.name, homes / node.name, node, tls) for node in controllers]
    here = Controller("here", homes / "here")
    scheduler = Controller("scheduler", homes / "scheduler", None, tls)
    for each in (here, *workers):
        each.authorize(fleet)
    service = Controller("service", homes / "service", None, tls)
    for each in (scheduler, service):
        each.home.mkdir()
    [own] = make_certificates(here.home / ".config/gpuprov/workers", [SITE])
    made = Crew(folder, here, scheduler, workers, service, own)
    try:
        made.begin()
        yield made
    finally:
        made.end()
