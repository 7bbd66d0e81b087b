"""Observations of the container toolkit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import at_boot, in_place_of, replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.container_toolkit import CDI_SERVICE, CONFIG, FORERUNNERS, not_as_shipped, refresh_state


@observes("container_toolkit.cdi", "units")
def _refreshed(facts: Facts, expectation: Expectation) -> str:
    """Return the state of the path unit that refreshes CDI specifications, and of its service at boot."""
    return refresh_state(unit_state(facts, expectation), at_boot(facts, CDI_SERVICE))


@names_who("container_toolkit.cdi")
def _refreshed_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the files in place of the path unit and of its service."""
    yield from replaced_by(facts, expectation)
    yield from in_place_of(facts, CDI_SERVICE)


@observes("container_toolkit.forerunners", "packages")
def _forerunners(facts: Facts, expectation: Expectation) -> Any:
    """Return the installed packages among those that the toolkit replaced."""
    return [name for name in FORERUNNERS if facts.packages.version(name)]


@observes("container_toolkit.config", "toolkit")
def _config(facts: Facts, expectation: Expectation) -> Any:
    """Return the keys of the toolkit's configuration that are not as shipped, with their values."""
    return not_as_shipped(facts.toolkit.config, facts.toolkit.default)


@names_who("container_toolkit.config")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str]:
    """Yield the toolkit's configuration file."""
    yield CONFIG


@observes("container_toolkit.specifications", "toolkit", "modules")
def _specifications(facts: Facts, expectation: Expectation) -> Any:
    """Return what does not fit in CDI specifications; nothing before the reboot into the locked driver.

    The reboot writes them again.
    """
    loaded, found = facts.loaded_driver, _unfit(facts, str(expectation.subject))
    return list(found) if loaded and loaded.version == expectation.subject else []


@names_who("container_toolkit.specifications")
def _specified_in(facts: Facts, expectation: Expectation) -> Iterator[str]:
    """Yield the files of specifications that do not fit."""
    yield from _unfit(facts, str(expectation.subject)).values()


@observes("container_toolkit.devices", "toolkit", "modules")
def _devices(facts: Facts, expectation: Expectation) -> Any:
    """Return the number of GPUs that nvidia.com/gpu=all gives a container.

    Of several specifications one in /var/run/cdi counts. It is the expected number before the reboot into the
    locked driver, which writes them again.
    """
    loaded = facts.loaded_driver
    stated = [each.gpus for each in facts.toolkit.specifications.values() if each.gpus]
    if loaded is None or loaded.version != expectation.subject:
        return expectation.expected
    return stated[-1] if stated else 0


def _unfit(facts: Facts, driver: str) -> dict[str, str]:
    """Return each sentence about a missing file, another driver or a file that users cannot read → the file
    of the specification.
    """
    found: dict[str, str] = {}
    for path, each in facts.toolkit.specifications.items():
        found |= {f"{path} names {name}, which does not exist": path for name in each.missing}
        found |= {f"{path} is for driver {other}": path for other in each.versions if other != driver}
        found |= {f"{path} is not readable for users": path} if each.private else {}
    return found
