"""Version locks of dnf for held packages, and their exclusion from automatic updates.

Runs on the node, with the modules of plugins/module_utils. Argument:
`{"packages": {name: version}, "patterns": [shell pattern, …], "check": false}`. Prints

    {"locked": ["libnccl"], "released": [], "excluded": true, "changed": true, "failure": null}

Other lines of the list of locks stay, as do other settings of dnf-automatic. At the end an upgrade of all
packages is simulated, which must change none of them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_dnf as dnf
import gpuprov_versionlock as versionlock
from gpuprov_failures import Failed
from gpuprov_replace import make_folders, read, replace

OURS, OUR_PATTERNS = "/var/lib/gpuprov/held", "/var/lib/gpuprov/excluded"  # the role's records, one per line
AUTOMATIC = "/etc/dnf/automatic.conf"
BASE, EXCLUDING = "[base]", ("excludepkgs", "exclude")
"""Section with dnf's own settings for automatic updates, and its keys for packages to leave unchanged."""
SIMULATION_S = 300


def main() -> None:
    """Settle version locks and exclusions, check that they would move no package, and print the changes and
    the failure as JSON.
    """
    asked = json.loads(sys.argv[1])
    document = {"locked": [], "released": [], "excluded": False, "changed": False, "failure": None}
    try:
        document.update(settle(asked))
        if not asked["check"]:
            dnf.set_environment()
            refuse_moves(asked["packages"])
    except Failed as error:
        document["failure"] = {"says": str(error), "do": None}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def settle(asked: dict) -> dict:
    """Write the locks, the exclusions and the record, unless in check mode; return what changes.

    Raises:
        Failed: dnf's plugin is switched off; not in check mode.
    """
    path = versionlock.place()
    if path is None and not asked["check"]:
        raise Failed(f"dnf's plugin of version locks is switched off in {versionlock.SETTINGS}")
    path = path or versionlock.LIST
    former = set((read(OURS) or b"").decode().split())
    before = (read(path, follow=True) or b"").decode(errors="replace")
    after, locked, released = merged(before, asked["packages"], former)
    configuration = (read(AUTOMATIC, follow=True) or b"").decode(errors="replace")
    excluding = excluded(configuration, asked["patterns"], set((read(OUR_PATTERNS) or b"").decode().split()))
    if not asked["check"]:
        write(path, after)
        write(AUTOMATIC, excluding)
        write(OURS, "".join(f"{name}\n" for name in sorted(asked["packages"])))
        write(OUR_PATTERNS, "".join(f"{pattern}\n" for pattern in asked["patterns"]))
    changed = after != before or excluding != configuration
    return {
        "locked": locked,
        "released": released,
        "excluded": excluding != configuration,
        "changed": changed,
    }


def merged(text: str, packages: dict[str, str], former: set[str]) -> tuple[str, list[str], list[str]]:
    """Return a list of locks with exactly one line for each package; and the names locked and released.

    Args:
        text: the list; lines of other packages stay.
        former: packages that the role locked before.
    """
    wanted = {name: versionlock.entry(name, version) for name, version in packages.items()}
    there = set(versionlock.patterns(text))
    ours = {
        name: re.compile(re.escape(name) + r"(?:-(?:\d+:)?[^-]+-[^-]+)?\Z")
        for name in former | packages.keys()
    }
    kept = [
        line
        for line in text.splitlines()
        if line.strip() in wanted.values() or not any(each.match(line.strip()) for each in ours.values())
    ]
    locked = sorted(name for name, line in wanted.items() if line not in there)
    released = sorted(
        name
        for name in former - packages.keys()
        if any(ours[name].match(line) for line in there if line not in wanted.values())
    )
    lines = [*kept, *(wanted[name] for name in locked)]
    return "".join(f"{line}\n" for line in lines), locked, released


def excluded(text: str, patterns: list[str], former: set[str]) -> str:
    """Return the settings of dnf-automatic with the patterns among the excluded packages of `[base]`.

    Args:
        text: the settings; packages that a user excludes stay.
        former: patterns that the role excluded before.
    """
    lines, words, section = [], [], ""
    key = ""
    for line in text.splitlines():
        section = line.strip() if line.startswith("[") else section
        stated = re.match(r"(\w+)\s*[=:]\s*(.*)", line)
        key = stated.group(1) if stated else key if line[:1] in (" ", "\t") else ""
        if section == BASE and key in EXCLUDING:
            words += re.split(r"[\s,]+", (stated.group(2) if stated else line).strip())
        else:
            lines.append(line)
    kept = [word for word in words if word and word not in former and word not in patterns]
    if not kept + patterns:
        return "".join(f"{line}\n" for line in lines) if words else text
    if BASE not in lines:
        lines.append(BASE)
    lines.insert(lines.index(BASE) + 1, f"excludepkgs = {' '.join([*kept, *patterns])}")
    return "".join(f"{line}\n" for line in lines)


def write(path: str, text: str) -> None:
    """Write a file, unless it has this text; one of dnf's own, as dnf.conf, keeps its mode and owner."""
    if (read(path, follow=True) or b"") != text.encode():
        make_folders(str(Path(path).parent))
        replace(path, text.encode(), None if Path(path).is_file() else 0o644)


def refuse_moves(packages: dict[str, str]) -> None:
    """Simulate an upgrade of all packages, with the locks.

    Raises:
        Failed: dnf fails, or would change one of the packages; the text names them.
    """
    moved = sorted({row.name for row in dnf.upgrade(SIMULATION_S)} & packages.keys())
    if moved:
        raise Failed(
            f"an upgrade would change {', '.join(moved)} although they are locked;"
            " see `dnf --assumeno upgrade` on the node"
        )


if __name__ == "__main__":
    main()
