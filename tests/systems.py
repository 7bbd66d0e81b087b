"""Systems that the roles support, from the table of the role preflight, with their names in archives."""

from __future__ import annotations

import yaml

from gpuprov.catalog import load
from gpuprov_lab.images import PLAYED, RECIPES
from tests import ROOT

TABLE = ROOT / "roles/preflight/vars/main.yml"
SUPPORTED: tuple[str, ...] = tuple(yaml.safe_load(TABLE.read_text(encoding="utf-8"))["__preflight_supported"])
"""Their ids in the catalog."""
DEBIAN = tuple(system for system in SUPPORTED if system.startswith("debian"))
"""Systems of the lab's nodes."""
IMAGES = {
    recipe.os: name for name, recipe in RECIPES.items() if name.endswith(PLAYED) and recipe.os in SUPPORTED
} | {system: system for system in DEBIAN}
"""System → the lab's image of it; nodes of the others are Debian 12 with another os-release."""
SSH = {"rhel8": {"policy": "compatible"}}
"""System → its settings of SSH, if its OpenSSH does not support the usual ones."""
UBUNTU = tuple(system for system in SUPPORTED if system.startswith("ubuntu"))
"""Systems that a lab node imitates by its os-release."""
OF_DNF = tuple(system for system in SUPPORTED if load().systems[system].manager == "dnf")
"""Systems whose packages dnf installs; the lab plays them."""
CODENAMES = {
    system: word
    for system in SUPPORTED
    for family in load().tables["systems.families"]
    for word, version in family.codenames.items()
    if system == f"{family.names[0]}{version}"
}
"""Their names in the archive of the distribution, such as `bookworm` for `debian12`."""
