"""Documentation pages: every command line is valid, and every link of the site has a target."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from gpuprov.cli.common.group import gpuprov
from gpuprov.roles import ROLES
from tests import ROOT
from tests.campaign._roles_table import Table, markdown
from tests.campaign._roles_trials import OWN_TESTS, TRIALS

PAGES = sorted(
    [*(ROOT / name for name in ("AGENTS.md", "README.md", "CONTRIBUTING.md")), *(ROOT / "docs").rglob("*.md")]
)
LINE = re.compile(r"^(?: {4}|\$ )\s*(?:\$ )?(gpuprov(?: .*)?)$", re.MULTILINE)
INLINE = re.compile(r"`(gpuprov [a-z][^`]*)`")
NOT_A_LINE = ("…", "VERB", "[", "KIND", "{", "NAME", "SYSTEM", "COMMAND")
"""Text that marks a line as a pattern or as output."""


def command_lines(page: Path) -> Iterator[tuple[list[str], bool]]:
    """Yield a page's command lines, split into words, and whether each is only mentioned in the text."""
    text = re.sub(r"\\\n\s+", "", page.read_text(encoding="utf-8"))
    lines = [(line, False) for line in LINE.findall(text)]
    for line, spoken_of in [*lines, *((each.replace("\n", " "), True) for each in INLINE.findall(text))]:
        bare = re.split(r"\s+#|\s+[>|]\s|\s&&\s", line)[0]
        if not any(word in re.sub(r"\[[\d,-]+\]", "", bare) for word in NOT_A_LINE):
            yield shlex.split(bare)[1:], spoken_of


def parsed(words: list[str]) -> None:
    """Parse a command line with click, without running it.

    Raises:
        click.UsageError: the command line is not valid.
    """
    command: click.Command = gpuprov
    name = "gpuprov"
    while isinstance(command, click.Group) and words:
        if words[0] in ("-h", "--help", "--version"):
            return
        found = command.get_command(click.Context(command), words[0]) or command.commands.get("TABLE")
        if found is None:
            raise click.UsageError(f"no verb {words[0]}")
        name, command, words = words[0], found, words[1:]
    if {"-h", "--help"} & set(words) or (isinstance(command, click.Group) and not words):
        return
    try:
        command.make_context(name, words)
    except click.BadParameter as error:
        if "does not exist" not in str(error):
            raise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_of_a_page_is_one(page: Path) -> None:
    wrong = []
    for words, spoken_of in command_lines(page):
        try:
            parsed(words)
        except click.MissingParameter as error:
            if not spoken_of:
                wrong.append(f"gpuprov {' '.join(words)}: {error.format_message()}")
        except click.UsageError as error:
            wrong.append(f"gpuprov {' '.join(words)}: {error.format_message()}")
    assert wrong == []


def test_a_line_that_is_none_is_seen() -> None:
    for line in ("dirft", "drift --basline x", "lock --as systemd", "init --os debian12 --hots a"):
        with pytest.raises(click.UsageError):
            parsed(line.split())


def test_there_are_command_lines() -> None:
    assert sum(len(list(command_lines(page))) for page in PAGES) > 120


class Links(HTMLParser):
    """Links of a page, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record links, and the anchors to which links can lead."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site from a strict build, in which a warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    dead, followed = [], 0
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to the root of the server
            continue
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            target = target / "index.html" if target.is_dir() else target
            followed += 1
            anchored = not to.fragment or to.fragment == "__top" or target not in pages
            if not target.exists() or not (anchored or unquote(to.fragment) in pages[target].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []
    assert followed > 1000


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        fetched = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', path.read_text("utf-8"))
        assert fetched == [], path


def test_the_reference_has_every_key_and_every_verb(site: Path) -> None:
    from gpuprov.cli.common.verbs import ADDED, VERBS
    from gpuprov.inventory.schemas import json_schema

    text = (site / "reference/fleet.html").read_text(encoding="utf-8")
    for record in json_schema("fleet")["$defs"].values():
        for key in record.get("properties", ()):
            assert f"<code>{key}</code>" in text
    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert "Sentinel" not in commands
    for verb in (*VERBS, *ADDED):
        assert f'id="{verb}"' in commands or f'id="gpuprov-{verb}"' in commands, verb


def test_the_page_of_role_tests_has_every_role_and_states_what_was_not_shown() -> None:
    page = (ROOT / "docs/roles.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([a-z_]+) \| (.+) \|$", page, re.MULTILINE))
    roles = {role.name for role in ROLES if (ROOT / "roles" / role.name).is_dir()}
    assert rows.keys() == roles | {"role"}
    assert {trial.role for trial in TRIALS} | OWN_TESTS.keys() == roles
    for role, test in OWN_TESTS.items():
        assert (ROOT / test).exists()
        assert f"- {role} is not shown here: `{test}`" in page
    results = Table(["debian12"])
    results.cells = {cell: said for cell, said in results.cells.items() if cell[0] != "podman"}
    lines = set(markdown(results))
    assert {line for line in page.splitlines() if "not shown" in line} <= lines


def test_refusals_are_words_and_each_of_a_node_says_what_to_do(site: Path) -> None:
    page = (site / "reference/rules.html").read_text(encoding="utf-8")
    text = page.partition('<h2 id="reasons-to-refuse-a-node')[2].partition("</article>")[0]
    for code in ("(each)", "str(", "{", "<td>said</td>", "<td>…; …</td>"):
        assert code not in text, code
    node = text.partition('<h2 id="findings-that-stop')[0]
    assert "no key of DKMS is enrolled" in node
    assert "<td></td>" not in node


def test_the_hooks_for_other_peoples_commits_are_command_lines() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert [each["id"] for each in hooks] == ["gpuprov-validate", "gpuprov-lock-check"]
    for each in hooks:
        parsed(each["entry"].split()[1:])
        for name in ("fleet.yml", "fleet.lock.yml", "profiles/mine.yml"):
            assert re.search(each["files"], name)
