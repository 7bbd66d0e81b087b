"""Two workers on lab nodes with their own keys against one controller: the same results on a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from gpuprov_lab import Lab
from tests import is_defect
from tests.campaign._upgrade_site import Site, site
from tests.lab.conftest import fresh_lab_name
from tests.lab.controllers import Crew, but_for_times, crew, state_own_keys
from tests.lab.upgrade_fleet import JOINED

pytestmark = pytest.mark.slow
UNHOLD, HELD = "apt-mark unhold libcuda1", "apt-mark showhold | grep -cx libcuda1"


@dataclass
class Scale:
    """The fleet and its controllers."""

    site: Site
    crew: Crew


@pytest.fixture(scope="module")
def scale() -> Iterator[Scale]:
    """Provide a site of two nodes, and two workers on nodes of their own."""
    with site([(JOINED, 2)], fresh_lab_name()) as found, Lab(fresh_lab_name()) as lab:
        state_own_keys(found.fleet.folder)
        nodes = lab.up(names=["ctl1", "ctl2"])
        with crew(found.fleet.folder, found.fleet.nodes, nodes) as made:
            yield Scale(found, made)


def both(scale: Scale, verb: str, *words: str, code: int) -> list[str]:
    """Return a verb's output by one controller and by workers, without times."""
    one = scale.crew.gpuprov(verb, *words, "-o", "json", code=code)
    many = scale.crew.by_workers(verb, *words, "-o", "json", code=code)
    return [but_for_times(one.stdout), but_for_times(many.stdout)]


def test_looks_are_the_same_by_one_and_by_many(scale: Scale) -> None:
    scale.site.fleet.nodes[1].run(UNHOLD)
    for verb, code in (("drift", 3), ("plan", 3), ("verify", 1)):
        one, many = both(scale, verb, code=code)
        assert "pins.hold" in one
        assert one == many, verb
    scale.site.fleet.nodes[1].run("apt-mark hold libcuda1")


def test_a_change_is_the_same_by_one_and_by_many(scale: Scale) -> None:
    documents = []
    # The first apply records the files of packages, too.
    for way in (scale.crew.gpuprov, scale.crew.gpuprov, scale.crew.by_workers):
        for node in scale.site.fleet.nodes:
            node.run(UNHOLD)
        documents.append(but_for_times(way("apply", "--yes", "--no-verify", "-o", "json").stdout))
        for node in scale.site.fleet.nodes:
            assert node.run(HELD).stdout.strip() == "1"
            assert node.run("cat /var/lib/gpuprov/lease.json", check=False).stdout == ""
    assert documents[1] == documents[2]
    said = "".join((each.home / "log").read_text() for each in scale.crew.workers)
    assert not is_defect(said)
    runs = scale.crew.folder / "state/gpuprov/runs"
    logs = [path for path in runs.rglob("attempt-*/site-ansible.log") if path.stat().st_size]
    assert len(logs) == 2, "each worker had a part"


def test_each_refusal_is_one_line(scale: Scale) -> None:
    def result(*words: str, code: int) -> str:
        """Return the one line on standard error of a drift with this exit code."""
        err = scale.crew.gpuprov("drift", *words, code=code).stderr
        assert len(err.splitlines()) == 1, err
        return err

    plain = scale.crew.address.replace("tls://", "tcp://")
    assert "is plain TCP, without authentication" in result("--workers", plain, code=5)
    assert "has no certificate of this fleet" in result("--workers", scale.crew.found, code=5)
    assert "sudo's password is not sent to workers" in result("-K", "--workers", scale.crew.address, code=5)
    text = (scale.crew.folder / "fleet.lock.yml").read_text()
    elsewhere = yaml.safe_load(text)
    for group in elsewhere["groups"].values():
        group["site"] = "mars"
    (scale.crew.folder / "mars.lock.yml").write_text(yaml.safe_dump(elsewhere))
    said = result("--lock", "mars.lock.yml", "--workers", scale.crew.address, code=5)
    assert "no service has a certificate of the site mars; connected: main" in said
    folder = scale.crew.here.home / ".config/gpuprov"
    folder.rename(folder.with_name("away"))
    try:
        assert "there is no certificate" in result("--workers", scale.crew.address, code=2)
    finally:
        folder.with_name("away").rename(folder)


def test_a_worker_without_the_key_says_so_by_its_name(scale: Scale) -> None:
    for worker in scale.crew.workers:
        (worker.home / ".ssh/fleet").rename(worker.home / ".ssh/away")
    try:
        done = scale.crew.by_workers("drift", code=1)
    finally:
        for worker in scale.crew.workers:
            (worker.home / ".ssh/away").rename(worker.home / ".ssh/fleet")
    for worker in scale.crew.workers:
        assert f"worker {worker.name}: the key {worker.home}/.ssh/fleet does not exist" in done.stdout


def test_workers_of_this_machine_need_nothing_else(scale: Scale) -> None:
    one = scale.crew.gpuprov("drift", "-o", "json")
    here = scale.crew.gpuprov("drift", "-o", "json", "--workers", "local:2")
    assert but_for_times(one.stdout) == but_for_times(here.stdout)
