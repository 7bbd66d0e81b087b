"""Objections of the role ssh_hardening to a node's ports; all are rendered, also those that do not hold."""

from __future__ import annotations

import re
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.nativetypes import NativeEnvironment

from tests import ROOT

LOOK: dict[str, Any] = {
    "armed": "",
    "drop_ins": True,
    "policy": False,
    "included": True,
    "earlier": [],
    "taken": {},
    "unlabelled": [],
    "claimed": {},
    "semanage": True,
    "hindrance": [],
    "elsewhere": {},
    "groups": ["root"],
    "unit": "sshd",
}
"""Answer of look.py on a node without a hindrance."""


def objections(**look: Any) -> list[str]:
    """Return the objections to a node that answers otherwise in the given parts."""
    document = yaml.safe_load((ROOT / "roles/ssh_hardening/vars/main.yml").read_text(encoding="utf-8"))
    known: dict[str, Any] = {
        "__ssh_hardening_look": {**LOOK, **look},
        "__ssh_hardening_unlabelled": look.get("unlabelled", []),
        "__ssh_hardening_groups": [],
        "__ssh_hardening_file": "FILE",
        "ssh_hardening_guard": "",
        "ssh_hardening_login": "root",
    }
    environment = NativeEnvironment(undefined=StrictUndefined)
    environment.filters["intersect"] = lambda some, others: [each for each in some if each in others]
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    rendered = [
        [environment.from_string(row[part]).render(known) for part in ("holds", "says")]
        for row in document["__ssh_hardening_objections"]
    ]
    return [re.sub(r"\s+", " ", str(says)) for holds, says in rendered if holds]


def test_a_port_with_another_label_of_the_site_is_named_with_the_command_that_deletes_it() -> None:
    assert objections() == []
    [said] = objections(claimed={"2244": "/etc/selinux/x/ports.local:3"})
    assert "port 2244, by /etc/selinux/x/ports.local:3;" in said
    assert "`semanage port --delete --proto tcp 2244`" in said


def test_no_text_of_the_node_is_a_command_to_copy() -> None:
    [label, listens] = objections(claimed={"22; id": "x"}, elsewhere={"7; id": "x"}, unit="ssh; id")
    assert "`semanage port --delete --proto tcp `" in label
    assert "`sudo systemd-run sh -c 'kill ; sleep 1; systemctl restart ssh.service'`" in listens


def test_a_port_without_a_label_needs_semanage() -> None:
    assert objections(unlabelled=["2222"]) == []
    [said] = objections(unlabelled=["2222"], semanage=False)
    assert "install policycoreutils-python-utils" in said
