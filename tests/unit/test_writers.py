"""Writing of files: only by the primitives; other code that writes is listed here with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

PRIMITIVES = {"plugins/module_utils/gpuprov_replace.py", "gpuprov/access/node/files.sh"}
FOLDERS = ("gpuprov", "plugins", "roles", "playbooks")
CALLS = {"write_text", "write_bytes", "NamedTemporaryFile", "mkstemp", "touch", "copy", "copy2", "copyfile"}
RENAMES = {"rename", "replace", "renames", "move"}
LIBRARIES = {"os", "shutil", "tempfile"}
WRITING = re.compile(r"[wax+]")
REDIRECTED = re.compile(r"(?<![-<=>&0-9])>>?(?! ?&|/dev/null| ?\()|\b(sed -i|tee|mv|cp|install -m|dd of=)")
TEMPORARY = "in a temporary folder of its own that is removed afterwards"
LOG = "a log, written as it grows"
ALLOWED = {
    "gpuprov/access/node/sshd.sh": "a parameter of the kernel in /proc/sys",
    "gpuprov/access/node/deadman.sh": "its own folder, which only root enters; one rename arms the switch",
    "gpuprov/accept/node/workers.py": "/dev/null",
    "gpuprov/apply/kernel_modules/journal.py": "appends to its own journal",
    "gpuprov/apply/node/built.py": "an archive whose SHA-256 is compared before it is used",
    "gpuprov/apply/node/lease.py": "leases and their locks, in a folder that only root enters",
    "gpuprov/apply/playbook.py": "a log of the run, and an empty file " + TEMPORARY,
    "gpuprov/catalog/releases.py": "a folder that is renamed when all its files are there",
    "gpuprov/cli/common/group.py": "/dev/null",
    "gpuprov/cli/common/logs.py": LOG,
    "gpuprov/doctor/bundle/bundle.py": "a new file, made exclusively",
    "gpuprov/health/output.py": "its own files in a full /run, where none can be replaced",
    "gpuprov/inventory/firstboot/node/first_boot.py": "sent in user-data: no room for the primitive",
    "gpuprov/probe/node/launcher.py": "a folder of modules that is renamed when all are there",
    "gpuprov/files/resources.py": "an empty file " + TEMPORARY,
    "gpuprov/locking/catalogs/update.py": TEMPORARY,
    "gpuprov/files/mutex.py": "a lock",
    "gpuprov/history/store.py": "SQLite's file",
    "gpuprov/ssh/client_config.py": "a temporary file that is removed afterwards",
    "gpuprov/ssh/contained.py": LOG,
    "gpuprov/untrusted/signature.py": TEMPORARY,
    "gpuprov/ssh/workers/certificates.py": "new keys, made exclusively and never over others",
    "gpuprov/upgrade/journal.py": "appends to its own journal",
    "gpuprov/upgrade/node/modules.py": "an empty mark that a reboot removes",
    "gpuprov/upgrade/node/packages.py": "packages whose sums are compared before they are used",
    "gpuprov/upgrade/node/rpms.py": "packages whose checksums rpmkeys compares before they are used",
    "gpuprov/verify/event_log.py": LOG,
    "plugins/callback/gpuprov_jsonl.py": LOG,
    "plugins/module_utils/gpuprov_apt.py": "messages, in memory",
    "plugins/module_utils/gpuprov_debconf.py": TEMPORARY,
    "plugins/module_utils/gpuprov_dnf.py": "a new file, made exclusively and removed afterwards",
    "plugins/module_utils/gpuprov_files.py": "a content to validate; a whole backup that is renamed back",
    "roles/nvidia_driver/files/install.py": "a folder of modules that is renamed when all are there",
    "roles/nvidia_driver/files/mark.py": "an empty mark that a reboot removes",
    "roles/ssh_hardening/files/restart.py": "a parameter of the kernel in /proc/sys",
    "roles/storage/files/format.py": "a lock on a device",
}
MODULES = re.compile(r"ansible\.builtin\.(lineinfile|blockinfile|replace|copy|template|get_url|assemble)\b")
BY_ANSIBLE = {
    "roles/imex/tasks/run.yml": "Ansible renames a whole file over one of the package",
    "roles/nvidia_driver/tasks/module.yml": "an archive whose SHA-256 is compared before it is used",
    "roles/storage/tasks/mounts.yml": "Ansible renames a whole file over fstab",
    "roles/system_tuning/tasks/environment.yml": "Ansible renames a whole file over one that others own",
}


def of_ours() -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file of the project that is not a primitive for writing."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.is_file() and name not in PRIMITIVES:
                yield name, path


def writes(tree: ast.AST) -> bool:
    """Return whether a syntax tree has a call that writes a file."""
    return any(isinstance(node, ast.Call) and _writes(node) for node in ast.walk(tree))


def _writes(call: ast.Call) -> bool:
    """Return whether a call writes a file: open for writing, or a function that writes."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    library = getattr(getattr(function, "value", None), "id", "")
    if name == "open" and library in ("os", ""):
        second = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
        modes = [ast.unparse(each.value) for each in call.keywords if each.arg == "mode"]
        if library == "os":
            return bool(re.search(r"O_(CREAT|WRONLY|RDWR)", second))
        return any(WRITING.search(text) for text in [second, *modes])
    if name == "open":
        modes = [ast.unparse(each) for each in call.args[:1] if isinstance(each, ast.Constant)]
        return any(re.fullmatch(r"'[rbt]*[wax][bt+]*'", text) for text in modes)
    if name in RENAMES and isinstance(function, ast.Attribute):
        return library in LIBRARIES or (
            len(call.args) == 1 and not call.keywords and library != "dataclasses"
        )
    if name in CALLS and isinstance(function, ast.Attribute):
        return name not in ("copy", "copy2", "copyfile") or library == "shutil"
    return name in {"NamedTemporaryFile", "mkstemp"}


def test_the_lint_sees_writers() -> None:
    for line in (
        "open(p, 'w')",
        "open(p, mode='ab')",
        "p.open('x')",
        "p.write_text(t)",
        "os.open(p, os.O_WRONLY)",
        "os.replace(a, b)",
        "a.rename(b)",
        "shutil.copy2(a, b)",
    ):
        assert writes(ast.parse(line)), line
    for line in ("open(p)", "open(p, 'rb')", "s.replace('a', 'b')", "os.open(p, os.O_RDONLY)", "d.copy()"):
        assert not writes(ast.parse(line)), line
    for line in ("echo x >f", "cat >>$f", "sed -i s/a/b/ f", 'mv "$a" b', "x | tee f"):
        assert REDIRECTED.search(line), line
    for line in ("a 2>&1", "a >/dev/null 2>&1", "echo b >&2", "[ $a -gt 3 ]", "a <$b"):
        assert not REDIRECTED.search(line), line


def test_files_are_written_by_the_primitives_alone() -> None:
    found = set()
    for name, path in of_ours():
        if path.suffix == ".py" and writes(ast.parse(path.read_text("utf-8"))):
            found.add(name)
        if path.suffix == ".sh":
            code = re.sub(r"(?m)^ *#.*$|#[ ].*$", "", path.read_text("utf-8"))
            found |= {name} if REDIRECTED.search(code) else set()
    assert found == set(ALLOWED), "use gpuprov.files.writing, gpuprov_replace or replace_file of files.sh"


def test_roles_leave_files_to_gpuprov_files() -> None:
    found = {
        name
        for name, path in of_ours()
        if path.suffix == ".yml" and "/tasks/" in name
        if any(
            MODULES.search(line) and "lookup(" not in line for line in path.read_text("utf-8").splitlines()
        )
    }
    assert found == set(BY_ANSIBLE)
