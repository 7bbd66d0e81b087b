"""Systems that the roles support, from the table of the role preflight, with their names in archives."""

from __future__ import annotations

import yaml

from gpuprov.catalog import load
from tests import ROOT

TABLE = ROOT / "roles/preflight/vars/main.yml"
SUPPORTED: tuple[str, ...] = tuple(yaml.safe_load(TABLE.read_text(encoding="utf-8"))["__preflight_supported"])
"""Their ids in the catalog."""
DEBIAN = tuple(system for system in SUPPORTED if system.startswith("debian"))
"""Systems of which the lab builds nodes."""
UBUNTU = tuple(system for system in SUPPORTED if system.startswith("ubuntu"))
"""Systems that a lab node imitates by its os-release."""
CODENAMES = {
    system: word
    for system in SUPPORTED
    for family in load().tables["systems.families"]
    for word, version in family.codenames.items()
    if system == f"{family.names[0]}{version}"
}
"""Their names in the archive of the distribution, such as `bookworm` for `debian12`."""
