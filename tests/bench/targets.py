"""Many SSH targets on one node: a whole range of addresses leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network
from pathlib import Path

from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov_lab import Lab, Node
from gpuprov_lab.host import execute

# The second half of RFC 2544's range; lab nodes use the first.
RANGE = IPv4Network("198.19.0.0/16")
LIMITS = "/etc/ssh/sshd_config.d/bench.conf"


@contextmanager
def many_addresses(node: Node) -> Iterator[None]:
    """Route the whole address range to the node during the block, and raise its sshd's limits.

    At the end the routes of both sides are deleted, and sshd has its limits again.
    """
    there = ["ip", "-n", node.link.namespace, "route"]
    with ExitStack() as stack:
        execute([*there, "replace", "local", str(RANGE), "dev", "lo"])
        stack.callback(execute, [*there, "delete", "local", str(RANGE), "dev", "lo"])
        execute(["ip", "route", "replace", str(RANGE), "via", node.address])
        stack.callback(execute, ["ip", "route", "delete", str(RANGE)])
        stack.callback(node.run, f"rm -f {LIMITS}; systemctl restart ssh")
        node.run(f"printf 'MaxStartups 4000\\nMaxSessions 4000\\n' >{LIMITS}; systemctl restart ssh")
        node.await_ssh()
        yield


def write_targets(lab: Lab, folder: Path, count: int) -> Lock:
    """Write a lock of `count` nodes, all of them the node in `folder`'s node.lock.yml."""
    [(name, group)] = read_lock(folder / "node.lock.yml").groups.items()
    hosts = {f"gpu{number:04}": str(RANGE[number]) for number in range(1, count + 1)}
    known = lab.known_hosts.read_text().split(maxsplit=1)[1].splitlines()[0]
    (folder / "known_hosts").write_text("".join(f"{address} {known}\n" for address in hosts.values()))
    connection = group.connection.model_copy(update={"known_hosts": str(folder / "known_hosts")})
    lock = Lock(
        inputs="0", groups={name: group.model_copy(update={"hosts": hosts, "connection": connection})}
    )
    write_lock(lock, folder / "fleet.lock.yml")
    return lock
