"""Files that an import of an Ansible inventory reads: in its folder, without the operator's settings."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports import ImportHints, import_fleet

ALL = ImportHints({"": "hgx-h100-8"}, {"": "debian12"})
PASSWORD = "a password"  # noqa: S105 - of a vault of this test


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


def named(folder: Path, group: str, host: str) -> None:
    """Write an inventory with one group, whose name in the fleet is valid, and one host."""
    text = {group: {"hosts": {host: {}}, "vars": {"gpuprov_name": "train"}}}
    (folder / "hosts.yml").write_text(json.dumps(text))


NAMES = {
    "group": ("../../secret", "n1"),
    "folder": ("../../secrets", "n1"),
    "host": ("g", "../../secret"),
    "hidden": (".own", "n1"),
    "variable": ("$LEAD", "n1"),
    "variable in braces": ("x${LEADS}", "n1"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "whole"), list(zip(NAMES, cycle((False, True)), strict=False)))
def test_a_name_that_leads_to_another_file_is_refused(
    inventory: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole: bool
) -> None:
    monkeypatch.setenv("LEADS", "/../../../secret")
    monkeypatch.setenv("LEAD", "../../secret")
    (inventory / "group_vars/.own.yml").write_text("token: hidden\n")
    named(inventory, *NAMES[name])
    path = inventory if whole else inventory / "hosts.yml"
    with pytest.raises(InvalidInput, match="is the name of a group or host; expected names without /"):
        import_fleet([path], ALL, "ansible")


@pytest.mark.thorough
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_no_file_is_read_for_such_a_name(
    inventory: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """Check only the plugin: variables are read before Python can check the names."""
    monkeypatch.setattr("gpuprov.inventory.imports.ansible.check_names", lambda names, path: None)
    monkeypatch.setenv("LEADS", "/../../../secret")
    monkeypatch.setenv("LEAD", "../../secret")
    (inventory / "group_vars/.own.yml").write_text("token: hidden\n")
    named(inventory, *names)
    assert "hidden" not in json.dumps(import_fleet([inventory], ALL, "ansible"))


def test_a_name_of_a_file_that_ansible_expands_stays_in_the_folder(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEADS", "../../../secret.yml")
    (inventory / "group_vars/g").mkdir()
    (inventory / "group_vars/g/$LEADS").touch()
    with pytest.raises(InvalidInput, match=r"LEADS is outside of .*/inventory"):
        import_fleet([inventory], ALL, "ansible")


@pytest.mark.parametrize(
    ("links", "leading"),
    [
        ({"group_vars/.x.yml": "../secret.yml"}, "group_vars/.x.yml"),
        ({"group_vars/g": "inventory/.more", ".more/x.yml": "../secret.yml"}, "group_vars/g/x.yml"),
        ({"group_vars/g": "inventory/more", "more/x.yml": "../secret.yml"}, "group_vars/g/x.yml"),
        ({"group_vars/.h/x": "inventory/.h", ".h/y": "inventory/.i", ".i/z": "../secrets"}, "y/z"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_link_through_hidden_and_other_folders_is_found(
    tmp_path: Path, inventory: Path, links: dict[str, str], leading: str, whole: bool
) -> None:
    for link, target in links.items():
        (inventory / link).parent.mkdir(exist_ok=True)
        (inventory / link).symlink_to(tmp_path / target.removeprefix("../"))
    path = inventory if whole else inventory / "hosts.yml"
    with pytest.raises(InvalidInput, match=f"{leading} is a link that leads out of {inventory}; expected"):
        import_fleet([path], ALL, "ansible")


def test_an_inventory_that_is_a_link_out_of_its_folder_is_refused(tmp_path: Path, inventory: Path) -> None:
    (inventory / "hosts").symlink_to(tmp_path / "secret.yml")
    with pytest.raises(InvalidInput, match="hosts is a link that leads out of"):
        import_fleet([inventory / "hosts"], ALL, "ansible")


@pytest.mark.parametrize("place", ["group_vars/a.b", "more/x.yml"])
def test_aliases_are_counted_in_each_file_that_a_name_or_a_link_selects(inventory: Path, place: str) -> None:
    (inventory / "more").mkdir()
    (inventory / "group_vars/a").symlink_to(inventory / "more")
    text = "v0: &v0 [x,x,x,x,x,x,x,x,x,x]\n"
    for number in range(1, 6):
        text += f"v{number}: &v{number} [{','.join([f'*v{number - 1}'] * 10)}]\n"
    (inventory / place).write_text(text)
    with pytest.raises(InvalidInput, match=r"aliases \(\*name\) add more than 20000 values"):
        import_fleet([inventory / "hosts.yml"], ALL, "ansible")


def test_a_folder_that_cannot_be_read_is_named(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(InvalidInput, match="host_vars cannot be read: Permission denied"):
        import_fleet([inventory / "hosts.yml"], ALL, "ansible")


def encrypted(text: str) -> str:
    """Return a text as ansible-vault encrypts it."""
    found: bytes = VaultLib([("default", VaultSecret(PASSWORD.encode()))]).encrypt(text)
    return found.decode()


@pytest.mark.parametrize("whole", [False, True])
def test_encrypted_files_and_values_are_named_and_left_out(
    tmp_path: Path, inventory: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Import with the vault's password named by the operator's environment."""
    (tmp_path / "password").write_text(PASSWORD)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    (inventory / "group_vars/g").mkdir()
    (inventory / "group_vars/g/vault.yml").write_text(encrypted("token: hidden\n"))
    (inventory / "host_vars/n1").write_text(encrypted("token: hidden\n"))
    value = "!vault |\n    " + encrypted("hidden").replace("\n", "\n    ")
    (inventory / "group_vars/g/plain.yml").write_text(
        f"rack: r1\nansible_user: {value}\ndeep:\n  - {value}\ngpuprov_group: {value}\n"
    )
    lines: list[str] = []
    path = inventory if whole else inventory / "hosts.yml"
    found = import_fleet([path], ALL, "ansible", narrate=lines.append)
    assert found == {
        "groups": {"g": {"profile": "hgx-h100-8", "os": "debian12", "hosts": "n1", "vars": {"rack": "r1"}}}
    }
    [line] = lines
    assert line.startswith("left out, because ansible-vault encrypted it: ")
    for place in ("group_vars/g/vault.yml", "host_vars/n1", "ansible_user (group g)", "deep (group g)",
                  "gpuprov_group (group g)"):  # fmt: skip
        assert place in line


PLUGIN = "from ansible.plugins.vars import BaseVarsPlugin\nopen({!r}, 'w')\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [("ANSIBLE_CONFIG", "./ansible.cfg"), ("ANSIBLE_VARS_PLUGINS", "./vars"), ("ANSIBLE_PLAYBOOK_DIR", ".")],
)
def test_no_setting_of_the_operator_leads_to_the_inventory(
    tmp_path: Path, inventory: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Import in the folder of another's repository, where a relative setting names its files."""
    mark = tmp_path / "ran"
    for folder in ("vars", "vars_plugins"):
        (inventory / folder).mkdir()
        (inventory / folder / "mine.py").write_text(PLUGIN.format(str(mark)))
    (inventory / "ansible.cfg").write_text("[defaults]\nvars_plugins = ./vars\n")
    monkeypatch.chdir(inventory)
    monkeypatch.setenv(name, value)
    import_fleet([Path("hosts.yml")], ALL, "ansible")
    assert not mark.exists()
