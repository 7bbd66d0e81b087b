"""A site's worker service, Dask's scheduler and Dask workers, connected by TLS.

The programs run on this machine, because a lab node has no gpuprov. A worker runs in the network namespace of
a lab node and has that node's name, and a home folder with its own SSH key.
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

from gpuprov.ssh.workers.certificates import make_certificates
from gpuprov_lab import Node
from gpuprov_lab.network import GATEWAY
from tests.lab.command_line import PROGRAM, gpuprov

DASK = str(Path(sys.executable).with_name("dask"))
CLOSED = ("--preload", "gpuprov.ssh.workers.closed")
SITE = "main"
KEY = "~/.ssh/fleet"
"""Path of the key in the lock; each controller has its own key at this path."""
READY_S = 180.0
TIMES = re.compile(r'"(\w*_at|at|run|seconds)": ("[^"]*"|[0-9.e-]+)')


@dataclass
class Controller:
    """A controller: a home folder with a key, and optionally the lab node whose network and name it uses."""

    name: str
    home: Path
    node: Node | None = None
    tls: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """Return an environment with this controller's home, state and certificates, without an SSH agent."""
        inherited = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
        own = {"HOME": self.home, "XDG_STATE_HOME": self.home / "state"}
        own["DASK_TEMPORARY_DIRECTORY"] = self.home / "dask"
        return {**inherited, **self.tls, **{name: str(path) for name, path in own.items()}}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a program as this controller."""
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
        """Kill the running program."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def serve(self, scheduler: str, *words: str) -> None:
        """Start a Dask worker on the node's address."""
        assert self.node
        how = ("--no-nanny", "--nthreads", "2", "--no-dashboard", "--protocol", "tls", *words)
        self.start(DASK, "worker", scheduler, "--name", self.name, "--host", self.node.address, *CLOSED, *how)

    def authorize(self, nodes: list[Node]) -> None:
        """Create a key and authorise it on nodes."""
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
    """A coordinator, a site's service and a scheduler on this machine, and a worker on each controller."""

    folder: Path
    here: Controller
    scheduler: Controller
    workers: list[Controller]
    service: Controller
    certificates: Path
    address: str = ""
    found: str = ""
    """Address of the scheduler."""

    @property
    def program(self) -> tuple[str, ...]:
        """Command that runs gpuprov as the coordinator."""
        return ("env", f"HOME={self.here.home}", sys.executable, "-m", "gpuprov")

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a gpuprov command as the coordinator."""
        return gpuprov(self.folder, *words, code=code, program=self.program)

    def by_workers(self, verb: str, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a gpuprov command as the coordinator, by the workers."""
        return self.gpuprov(verb, *words, "--workers", self.address, code=code)

    def begin(self) -> None:
        """Start the scheduler, all workers and the service, and wait up to `READY_S` for them."""
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
        """Return whether every worker is registered with the scheduler and the service listens."""
        if "listening" not in (self.service.home / "log").read_text():
            return False
        return all("Registered to" in (worker.home / "log").read_text() for worker in self.workers)

    def end(self) -> None:
        """Kill all programs."""
        for each in (*self.workers, self.scheduler, self.service):
            each.end()


def but_for_times(document: str) -> str:
    """Return a document with its times, durations and run numbers replaced, for comparison."""
    return TIMES.sub(r'"\1": …', document)


def certificates(folder: Path) -> dict[str, str]:
    """Create one shared certificate; return Dask's configuration of it as environment variables."""
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
    """Return a TCP port of the gateway address that is free now."""
    with socket.create_server((str(GATEWAY), 0)) as listener:
        return int(listener.getsockname()[1])


def state_own_keys(folder: Path) -> None:
    """Change the locks in a folder to the key path `KEY`, which each controller has in its home."""
    for path in folder.glob("*.lock.yml"):
        plain = yaml.safe_load(path.read_text())
        for group in plain["groups"].values():
            group["connection"]["identity_file"] = KEY
        path.write_text(yaml.safe_dump(plain, sort_keys=False))


@contextmanager
def crew(folder: Path, fleet: list[Node], controllers: list[Node]) -> Iterator[Crew]:
    """Run a coordinator, a scheduler and one worker per controller, each with its own key on the fleet."""
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
