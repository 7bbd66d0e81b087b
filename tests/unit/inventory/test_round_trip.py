"""Round trip of a fleet through its inventory, with any names of groups, hosts and variables."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprov.inventory.ansible import dynamic, inventory_of
from gpuprov.inventory.imports import ImportHints
from gpuprov.inventory.imports.ansible import fleet_of
from gpuprov.model.documents import render_plain
from gpuprov.model.fleet import Fleet, parse_fleet
from gpuprov.untrusted.parsing import LARGEST_NUMBER

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,6}[A-Za-z0-9]", fullmatch=True)
GROUPS = st.one_of(
    NAMES, st.sampled_from(["hosts", "gpu l4", "arch_x86_64", "os_debian12", "8x-a100", "Über"])
)
KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST_NUMBER, LARGEST_NUMBER)
    | st.text(st.characters(codec="ascii", exclude_categories=["C"])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
VARS = st.dictionaries(KEYS, VALUES, max_size=2)
SOME_VARS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=2)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw a fleet of groups that share no host, with further groups of some hosts and groups."""
    hosts = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    names = draw(st.lists(GROUPS, min_size=1, max_size=min(3, len(hosts)), unique=True))
    groups: dict[str, Any] = {}
    for index, name in enumerate(names):
        mine = hosts[index :: len(names)]
        groups[name] = {
            "profile": draw(st.sampled_from(["inference-l4", "hgx-h100-8"])),
            "os": draw(st.sampled_from(["debian12", "ubuntu24.04"])),
            "hosts": {host: draw(st.sampled_from([host, "10.0.0.1", "2001:db8::1"])) for host in mine},
            "vars": draw(VARS),
        }
        if draw(st.booleans()):
            groups[name] |= {"site": draw(NAMES), "settings": {"clocks": {"graphics": 900, "memory": 900}}}
    further = draw(st.lists(GROUPS.filter(lambda name: name not in groups), max_size=2, unique=True))
    also = {
        name: {"hosts": draw(st.lists(st.sampled_from(hosts), max_size=1)),
               "children": draw(st.lists(st.sampled_from(names), max_size=1)),
               "vars": draw(SOME_VARS)}
        for name in further
    }  # fmt: skip
    host_vars = draw(st.dictionaries(st.sampled_from(hosts), SOME_VARS, max_size=1))
    text = render_plain({"groups": groups, "also": also, "host_vars": host_vars, "ssh": {"user": "ops"}})
    return parse_fleet(text, "drawn")


def plain(fleet: Fleet) -> dict[str, Any]:
    """Return the fleet with sorted names, as their order in the file has no meaning."""
    stated = fleet.model_dump(mode="json")
    for group in stated["also"].values():
        group["hosts"], group["children"] = sorted(group["hosts"]), sorted(group["children"])
    return stated


@given(fleets())
@settings(max_examples=40)
def test_nothing_is_lost(fleet: Fleet) -> None:
    """Check that a fleet that became an Ansible inventory and a fleet again is the same."""
    inventory = inventory_of(fleet, {})
    back = parse_fleet(render_plain(fleet_of(inventory, ImportHints())), "back")
    assert plain(back) == plain(fleet)
    listed = dynamic(inventory)
    assert set(listed["all"]["children"]) == listed.keys() - {"all", "_meta"}
    assert not {host for group in fleet.groups.values() for host in group.hosts} & listed.keys()
