"""Opens the HTML report in a real browser: light, dark, at phone size, and with 10,000 nodes.

    scripts/campaign report [--folder DIR]

Needs Chromium (`apt-get install chromium`). Every page must run without a console message and without a
network request, and must open the node in its address. Screenshots are left in DIR.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import InvalidInput
from gpuprov.history.record import Group, Run
from gpuprov.report.html import write_html

CHECKS = (
    *("system.os", "system.arch", "dpkg.consistent", "driver.packages", "kernel.headers"),
    *(
        "driver.module_on_disk",
        "driver.module_flavour",
        "nouveau.blacklist",
        "nouveau.loaded",
        "driver.loaded",
    ),
    *("driver.answers", "gpu.model", "gpu.count", "gpu.visible", "gpu.persistence_unit", "gpu.persistence"),
    *("gpu.clocks_unit", "gpu.clocks", "pins.hold", "pins.unattended"),
)
VALUES = {
    "driver.packages": ({"libcuda1": "535.309.01-0+deb12u1"}, {"libcuda1": "535.261.03-1"}),
    "driver.loaded": ("535.309.01", None),
    "driver.answers": (True, "Failed to initialize NVML: Driver/library version mismatch"),
    "gpu.count": (8, 7),
    "gpu.clocks": ({"graphics": 1980, "memory": 2619}, "unknown: nvidia-smi did not answer in time"),
    "pins.hold": (["libcuda1", "nvidia-smi"], ["nvidia-smi"]),
    "nouveau.blacklist": (["nouveau", "nova_core"], ["<script>alert(1)</script>"]),
}
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
FRAME = '<!doctype html><body style="margin: 0"><iframe src="{}" width="{}" height="{}" style="border: 0">'
"""A page that shows another one in a width of its own: a window of Chromium is at least 500 pixels wide."""
LOOKS = {"light": [], "dark": ["--blink-settings=preferredColorScheme=0", "--force-dark-mode"]}


def main() -> int:
    """Write the pages and open each; return 1 if one has a complaint.

    Raises:
        InvalidInput: there is no browser.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gpuprov-report")
    folder: Path = arguments.parse_args().folder
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise InvalidInput("no Chromium here", do="apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    complaints = 0
    for count in (24, 200, 10_000):
        page = folder / f"{count}.html"
        begun = time.perf_counter()
        write_html(fleet(count), page)
        seconds = time.perf_counter() - begun
        print(f"{count} nodes: {page.stat().st_size / 1024:.0f} KiB, written in {seconds:.2f} s")
        for size, (width, height) in SIZES.items():
            frame = folder / f"{count}-{size}.html"
            frame.write_text(FRAME.format(page.name, width, height))
            for look, words in LOOKS.items():
                begun = time.perf_counter()
                picture, window = folder / f"{count}-{size}-{look}.png", f"{width},{height}"
                complaints += shoot(browser, frame, picture, window, words)
                print(f"    {size}, {look}: {time.perf_counter() - begun:.1f} s")
        complaints += behaves(browser, page)
    print(f"{complaints} complaints; screenshots are in {folder}")
    return 1 if complaints else 0


def fleet(count: int) -> Run:
    """Return a run of two groups with some drifted and a few unreachable nodes."""
    dice = random.Random(1)  # noqa: S311 - dice, not secrets
    names = [f"gpu{number:05}" for number in range(1, count + 1)]
    nodes = [story(name, dice) for name in names]
    half = count * 2 // 3
    groups = {"train": Group(tuple(names[:half]), CHECKS), "infer": Group(tuple(names[half:]), CHECKS[:-4])}
    return Run(
        "20260131-142501-drift-9f3a",
        "drift",
        "2026-01-31T14:25:01+00:00",
        "/srv/fleet.lock.yml",
        groups,
        nodes,
    )


def story(name: str, dice: random.Random) -> NodeDrift:
    """Return a random result of a node: most are in sync."""
    chance = dice.random()
    if chance < 0.04:
        return NodeDrift(name, "unreachable", reason="no SSH on 10.1.2.3 port 22: timed out; is it up?")
    if chance < 0.06:
        return NodeDrift(name, "error", reason="no Python 3 on the node; install python3 there")
    if chance < 0.75:
        return NodeDrift(name, "in_sync")
    drift = tuple(
        Difference(
            check,
            *VALUES[check],
            "warning" if check == "pins.hold" else "error",
            "nvidia_driver",
            reboot=False,
        )
        for check in dice.sample(sorted(VALUES), dice.choice((1, 1, 2, 3)))
    )
    return NodeDrift(name, "drifted", drift)


def shoot(browser: str, page: Path, picture: Path, pixels: str, words: list[str]) -> int:
    """Take a screenshot, and print the console's messages; return their number, one more without
    a picture.
    """
    result = run(browser, f"--screenshot={picture}", f"--window-size={pixels}", *words, page.as_uri())
    loud = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    for line in loud:
        print(f"    {line}")
    return len(loud) + (not picture.exists())


def behaves(browser: str, page: Path) -> int:
    """Open the page at its second row; return 0 if the script opens its details and hostile values remain
    text, else 1 or 2.
    """
    dom = run(browser, "--dump-dom", page.as_uri() + "#row2").stdout
    opened = (
        dom.count('<details class="story" id="row2"') == 1
        and 'open=""' in dom.partition('id="row2"')[2][:200]
    )
    inert = "<script>alert" not in dom
    print(f"    script runs: {opened}; values are text: {inert}")
    return (not opened) + (not inert)


def run(browser: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the browser headless, with every name and address unreachable."""
    with tempfile.TemporaryDirectory() as profile:
        offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
        offline += ["--no-first-run", "--disable-component-update", "--disable-sync", "--disable-quic"]
        how = ["--headless", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", *offline]
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [browser, *how, *root, f"--user-data-dir={profile}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


if __name__ == "__main__":
    sys.exit(main())
