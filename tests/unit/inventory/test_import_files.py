"""Files that an import of an Ansible inventory reads: in its folder, without the operator's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.inventory.imports import ImportHints, import_fleet

ALL = ImportHints({"": "hgx-h100-8"}, {"": "debian12"})


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Return the folder of an inventory, next to a secret of the operator."""
    (tmp_path / "secret.yml").write_text("token: hidden\n")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/all.yml").write_text("token: hidden\n")
    folder = tmp_path / "inventory"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "host_vars").mkdir()
    (folder / "hosts.yml").write_text("g: {hosts: {n1: {}}}\n")
    return folder


PLUGIN = "from ansible.plugins.vars import BaseVarsPlugin\nopen({!r}, 'w')\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [("ANSIBLE_CONFIG", "./ansible.cfg"), ("ANSIBLE_VARS_PLUGINS", "./vars"), ("ANSIBLE_PLAYBOOK_DIR", ".")],
)
def test_no_setting_of_the_operator_leads_to_the_inventory(
    tmp_path: Path, inventory: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Import in the folder of another's repository, to whose files a relative setting of the operator leads."""
    mark = tmp_path / "ran"
    for folder in ("vars", "vars_plugins"):
        (inventory / folder).mkdir()
        (inventory / folder / "mine.py").write_text(PLUGIN.format(str(mark)))
    (inventory / "ansible.cfg").write_text("[defaults]\nvars_plugins = ./vars\n")
    monkeypatch.chdir(inventory)
    monkeypatch.setenv(name, value)
    import_fleet([Path("hosts.yml")], ALL, "ansible")
    assert not mark.exists()
