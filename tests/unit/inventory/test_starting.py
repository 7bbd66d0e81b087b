"""The fleet.yml that init writes: useful keys are comments, and each comment may be uncommented."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from gpuprov.cli.common.group import run
from gpuprov.model.fleet import read_fleet

KINDS = {
    "profile": ("--profile", "hgx-h100-8"),
    "instance": ("--instance", "aws:p5.48xlarge"),
}


@pytest.fixture(params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path of the fleet.yml that `gpuprov init` writes for a kind of start."""
    path = tmp_path / "fleet.yml"
    words = ("init", "-F", str(path), "--hosts", "gpu[01-08]", "--os", "ubuntu24.04", "--user", "ubuntu")
    assert run([*words, *KINDS[request.param]]) == 0
    return path


def test_it_is_a_fleet_and_the_schema_that_it_names_takes_it(written: Path) -> None:
    import jsonschema  # takes two seconds, which other test processes need not spend

    assert read_fleet(written).ssh.user == "ubuntu"
    first = written.read_text().splitlines()[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert named
    schema = json.loads((written.parent / named[1]).read_text())
    jsonschema.validate(yaml.safe_load(written.read_text()), schema)


def test_every_key_in_a_comment_may_be_taken_out_of_it(written: Path) -> None:
    head, text = written.read_text().split("groups:\n")
    taken = re.sub(r"(?m)^( *)# ", r"\1", text)
    assert taken != text
    written.write_text(f"{head}groups:\n{taken}")
    fleet = read_fleet(written)
    [group] = fleet.groups.values()
    assert group.stack.cuda == ("12.8", "12.4")
    assert group.settings.mig
    assert fleet.ssh.port
    assert fleet.rollout
    assert fleet.rollout.canary == ["gpu01"]
    assert fleet.repositories


def test_a_system_that_is_none_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yml"
    for system in ("ubuntu", "ubunto24.04"):
        assert run(["init", "-F", str(path), "--profile", "dev-t4", "--hosts", "a", "--os", system]) == 2
        assert "expected one of ubuntu" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
