"""`scripts/catalog case`: a test case of the doctor from a support bundle.

A bundle is untrusted, and may contain more than the program packed: its machine is restored and composed
again, and only what a bundle may contain becomes part of the case.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gpuprov.cli.common.terminal import say
from gpuprov.doctor.bundle.bundle import SCHEMA, compose
from gpuprov.doctor.fault import RULES
from gpuprov.doctor.judge import diagnose
from gpuprov.doctor.look import examination
from gpuprov.errors import Exit, GpuprovError, InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.probe.facts import Facts
from gpuprov.untrusted.archives import tar_files
from gpuprov.untrusted.parsing import read_json
from maintenance.restoring import Collectors, restored

CASES = Path(__file__).parents[1] / "tests/recorded/reports/cases"
PACKED, UNPACKED = 4 << 20, 16 << 20
"""Maximum size of a bundle in bytes, packed and unpacked."""
FILES = 16
"""Maximum number of files of a bundle, which has four."""
AT = "2026-01-01T00:00:00Z"
"""Time of the examination in a case; times of the log are before it."""
HOST = "node"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--name", required=True, metavar="NAME", help="name of the case: small letters, digits, hyphens"
)
@click.option(
    "--shows", required=True, metavar="TEXT", help="what the machine showed and why, in your own words"
)
@click.option("--rule", "rules", multiple=True, required=True, help="rule that names the cause; repeatable")
@click.option("--source", default="", metavar="URL", help="address of the public report, if there is one")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=CASES, show_default=False)
def command(bundle: Path, name: str, shows: str, rules: tuple[str, ...], source: str, out: Path) -> Exit:
    """Write a test case of the doctor from BUNDLE, the file of `gpuprov doctor HOST --bundle FILE`.
    InvalidInput for a name with other characters than small letters, digits and hyphens.

    The case has no names and no addresses: it contains only what a bundle may contain. A rule that does not
    exist yet is a case that fails until it is written. Exit 3 if the doctor does not name a rule of the case.
    """
    if not NAME.fullmatch(name):
        raise InvalidInput(f"the name {name!r}", expected="small letters, digits and hyphens, at most 61")
    collectors = chosen(restored(read_bundle(bundle)))
    case = {
        "source": source or f"https://bundles.invalid/{name}",
        "shows": shows,
        "rules": sorted(rules),
        "collectors": collectors,
    }
    path = out / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(case, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    found = diagnose(examination(Facts(HOST, AT, 0.0, collectors))).faults
    first = found[0].rule if found else "nothing"
    unknown = sorted(set(rules) - set(RULES))
    say(
        f"{path}: the doctor reports {first} first"
        + (f"; no such rule yet: {', '.join(unknown)}" if unknown else "")
    )
    return Exit.OK if first in rules else Exit.DRIFT


def read_bundle(path: Path) -> Collectors:
    """Return the collectors in a bundle, with the kernel's log, in the bundle's form.

    Raises:
        InvalidInput: it is too large, damaged, or not a bundle of this schema.
    """
    try:
        if path.stat().st_size > PACKED:
            raise InvalidInput(
                f"{path} is larger than {PACKED >> 20} MiB", do="ask for a bundle of `gpuprov doctor`"
            )
        with gzip.open(path) as file:
            data = file.read(UNPACKED + 1)
        if len(data) > UNPACKED:
            raise InvalidInput(f"{path} unpacks to more than {UNPACKED >> 20} MiB")
        files = tar_files(data, FILES)
        facts_text = files["gpuprov-bundle/facts.json"].decode()
        log_text = files.get("gpuprov-bundle/kernel-log.txt", b"").decode()
    except (OSError, EOFError, zlib.error, KeyError, ValueError) as error:
        raise InvalidInput(
            f"{path} is not a bundle ({type(error).__name__})", do="gpuprov doctor HOST --bundle FILE"
        ) from None
    try:
        facts = read_json(facts_text, UNPACKED)
    except ValueError as error:
        raise InvalidInput(f"{path}: facts.json is not JSON ({error})") from None
    if (
        not isinstance(facts, dict)
        or facts.get("schema") != SCHEMA
        or not isinstance(facts.get("collectors"), dict)
    ):
        raise InvalidInput(f"{path}: facts.json is not of schema {SCHEMA}")
    found: Collectors = facts["collectors"]
    if isinstance(found.get("kernel_log"), dict):
        found["kernel_log"]["kept"] = _log(log_text, str(facts.get("collected_at")))
    return found


def _log(text: str, collected_at: str) -> list[list[Any]]:
    """Return the log's lines with times relative to `AT`, at least as old as in the bundle, at most 4,000.

    Lines without a time are left out. InvalidInput if `collected_at` is not a time.
    """
    try:
        now, then = (datetime.fromisoformat(each).timestamp() for each in (collected_at, AT))
    except ValueError:
        raise InvalidInput(
            f"facts.json was collected at {collected_at[:40]!r}", expected="a time of ISO 8601"
        ) from None
    rows = []
    for line in text.splitlines()[:4000]:
        stamp, _, said = line.partition(" ")
        if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,6})?", stamp):
            rows.append([round(float(stamp) - now + then, 6), said])
    return rows


def chosen(collectors: Collectors) -> Collectors:
    """Return a restored machine as it is after a bundle: everything else in it is lost.

    Raises:
        InvalidInput: it cannot be composed.
    """
    try:
        files = compose(examination(Facts(HOST, AT, 0.0, collectors))).files
    except GpuprovError as error:
        raise InvalidInput(f"the bundle's values cannot be read ({error})") from error
    facts: Collectors = json.loads(files["facts.json"])["collectors"]
    if isinstance(facts.get("kernel_log"), dict):
        facts["kernel_log"]["kept"] = _log(files.get("kernel-log.txt", ""), AT)
    return restored(facts)
