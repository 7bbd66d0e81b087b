"""Runners of GitHub and GitLab on lab nodes: steps of a job with the environment that a runner gives them."""

from __future__ import annotations

import datetime
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror.serve import MirrorServer
from gpuprov_lab.network import GATEWAY
from tests import ROOT
from tests.campaign import _forges_api as api
from tests.collection.build import copy

SYSTEM = "debian13-minimal"
APT = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get -q update && apt-get -qy install --no-install-recommends"
)
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
INPUT = re.compile(r"\$\[\[ inputs\.(\w+) \]\]")
WORK = "/home/runner/work"
LONGEST_S = 1800


@dataclass(frozen=True)
class Done:
    """The end of a step: its name, exit code and output."""

    name: str
    code: int
    said: str


def forge_node(lab: Lab, name: str, packages: str, files: Path) -> Node:
    """Return a minimal node with packages, with the forges' APIs, which serve the files of a folder."""
    [node] = lab.up(1, os=SYSTEM, names=[name])
    node.run(f"{APT} ca-certificates {packages}")
    shutil.copytree(files, node.root / "srv/files")
    shutil.copy(api.__file__, node.root / "srv/api.py")
    certificate, both = certificate_of(*api.HOSTS)
    (node.root / "usr/local/share/ca-certificates/forges.crt").write_bytes(certificate)
    (node.root / "srv/api.pem").write_bytes(both)
    hosts = f"127.0.0.1 {' '.join(api.HOSTS)}"
    node.run(f"update-ca-certificates && echo {hosts} >>/etc/hosts")
    node.run("systemd-run --quiet --unit=forges python3 /srv/api.py /srv/api.pem /srv")
    return node


def certificate_of(*names: str) -> tuple[bytes, bytes]:
    """Return a certificate of hosts that signs itself, alone and with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forges of a test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    alone = made.public_bytes(serialization.Encoding.PEM)
    return alone, alone + key.private_bytes(serialization.Encoding.PEM, *form)


def comments(node: Node) -> list[str]:
    """Return the comments that were written in addition to the first ones; those must not have changed."""
    path = node.root / "srv/comments.json"
    found = yaml.safe_load(path.read_text()) if path.exists() else api.FIRST
    assert found[: len(api.FIRST)] == api.FIRST
    return [str(each["body"]) for each in found[len(api.FIRST) :]]


@dataclass
class GitHub:
    """GitHub's runner: the user `runner`, and a workspace with a checkout of the fleet.

    Attributes:
        known: name of a context's value → value, such as `inputs.plan`.
    """

    node: Node
    index: MirrorServer
    known: dict[str, str] = field(default_factory=dict)

    def prepare(self, fleet: Path, commit: str) -> None:
        """Write the Action at a commit, and the fleet, as the runner checks them out."""
        action = f"{WORK}/_actions/o/gpuprov/{commit}"
        self.node.run("useradd --create-home --shell /bin/bash runner")
        copy(self.node.root / action[1:])
        shutil.copytree(fleet, self.node.root / f"{WORK}/fleet/fleet"[1:])
        self.node.run(f"mkdir {WORK}/_temp && chown -R runner: /home/runner")
        stated = yaml.safe_load((ROOT / "action.yml").read_text())
        defaults = {f"inputs.{name}": str(each["default"]) for name, each in stated["inputs"].items()}
        context = {
            "github.action_path": action,
            "github.token": api.TOKEN,
            "github.repository": "o/fleet",
            "github.event.pull_request.number": "5",
        }
        self.known = {**context, **defaults}

    def job(self, **inputs: str) -> Iterator[Done]:
        """Run the Action's steps in a fresh job; after a failed step only those with `always()`."""
        known = {**self.known, **{f"inputs.{name.replace('_', '-')}": text for name, text in inputs.items()}}
        self.node.run(f"rm -rf {WORK}/_temp && install -d -o runner -g runner {WORK}/_temp")
        failed, taken = False, dict[str, str]()
        for number, step in enumerate(yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]):
            if "run" not in step or not holds(step.get("if", "success()"), known, failed=failed):
                continue
            done = self.step(number, step, known, taken)
            failed = failed or done.code != 0
            yield done

    def step(
        self, number: int, step: Mapping[str, Any], known: Mapping[str, str], taken: dict[str, str]
    ) -> Done:
        """Run a step; add the variables that it states for later ones to `taken`."""
        temp, files = f"{WORK}/_temp", ("ENV", "PATH", "OUTPUT", "STEP_SUMMARY")
        script = f"{temp}/{number}.sh"
        own = {name: filled(text, known) for name, text in step.get("env", {}).items()}
        variables = {
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "HOME": "/home/runner",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "RUNNER_TEMP": temp,
            "RUNNER_OS": "Linux",
            "GITHUB_WORKSPACE": f"{WORK}/fleet/fleet",
            "GITHUB_REPOSITORY": known["github.repository"],
            **{f"GITHUB_{name}": f"{temp}/{name}.{number}" for name in files},
            "PIP_INDEX_URL": f"{self.index.url}/simple",
            "PIP_TRUSTED_HOST": str(GATEWAY),
            **taken,
            **own,
        }
        (self.node.root / script[1:]).write_text(step["run"])
        made = " ".join(f"{temp}/{name}.{number}" for name in files)
        self.node.run(f"touch {made} && chown runner: {made}")
        words = ["env", "-i", *(f"{name}={text}" for name, text in variables.items()), "sh", "-e", script]
        line = f"cd {variables['GITHUB_WORKSPACE']} && runuser -u runner -- {shlex.join(words)} 2>&1"
        done = self.node.run(line, check=False, timeout=LONGEST_S)
        self.take(f"{temp}/PATH.{number}", f"{temp}/ENV.{number}", taken)
        return Done(step["name"], done.returncode, done.stdout)

    def take(self, paths: str, variables: str, taken: dict[str, str]) -> None:
        """Read the files by which a step changes PATH and the variables of later steps."""
        for line in (self.node.root / variables[1:]).read_text().splitlines():
            name, _, taken[name] = line.partition("=")
        for line in (self.node.root / paths[1:]).read_text().splitlines():
            taken["PATH"] = f"{line}:{taken.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"


def holds(condition: str, known: Mapping[str, str], *, failed: bool) -> bool:
    """Return whether a step's condition holds; without `always()` it does not after a failed step."""
    parts = condition.split(" && ")
    if "always()" not in parts and failed:
        return False
    for part in parts:
        name, equal, text = part.partition(" == ")
        value = "true" if name in ("always()", "success()") else known[name]
        if (value != text.strip("'")) if equal else not value:
            return False
    return True


def filled(text: str, known: Mapping[str, str]) -> str:
    """Return a text with the values of its expressions; a default can have one, too."""
    while EXPRESSION.search(text):
        text = EXPRESSION.sub(lambda found: known[found[1]], text)
    return text


@dataclass
class GitLab:
    """GitLab's runner: root in the job's image, and a folder with a checkout of the fleet.

    Attributes:
        inputs: of the component.
    """

    node: Node
    index: MirrorServer
    inputs: dict[str, str]

    def prepare(self, fleet: Path, key: str, known_hosts: str) -> None:
        """Write the fleet and the files of the project's variables, and make the image's Python with pip."""
        shutil.copytree(fleet, self.node.root / "builds/o/fleet")
        (self.node.root / "builds/key").write_text(key)
        (self.node.root / "builds/known").write_text(known_hosts)
        self.node.run("python3 -m venv /opt/python")  # as /usr/local of the image `python`

    def job(self, *, plan: bool) -> Done:
        """Run the job's lines in one shell, with `set -eo pipefail`."""
        spec, jobs = yaml.safe_load_all((ROOT / "templates/review.yml").read_text())
        [job] = jobs.values()
        defaults = {name: str(each.get("default", "")) for name, each in spec["spec"]["inputs"].items()}
        inputs = {**defaults, **self.inputs, "plan": str(plan).lower()}
        variables = {
            "CI": "true",
            "GITLAB_CI": "true",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "CI_API_V4_URL": f"https://{api.GITLAB}/api/v4",
            "CI_PROJECT_ID": "1",
            "CI_MERGE_REQUEST_IID": "5",
            "GPUPROV_TOKEN": api.TOKEN,
            "GPUPROV_SSH_KEY": "/builds/key",
            "GPUPROV_KNOWN_HOSTS": "/builds/known",
            "PIP_INDEX_URL": f"{self.index.url}/simple",
            "PIP_TRUSTED_HOST": str(GATEWAY),
            **{
                name: INPUT.sub(lambda found: inputs[found[1]], text)
                for name, text in job["variables"].items()
            },
        }
        script = "\n".join(["set -eo pipefail", *job["before_script"], *job["script"]])
        (self.node.root / "builds/script").write_text(script)
        words = [
            "env",
            "-i",
            *(f"{name}={text}" for name, text in variables.items()),
            "bash",
            "/builds/script",
        ]
        line = f"cd /builds/o/fleet && {shlex.join(words)} 2>&1"
        done = self.node.run(line, check=False, timeout=LONGEST_S)
        return Done("review", done.returncode, done.stdout)
