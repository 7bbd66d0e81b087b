"""Commands with which verify looks for libraries, run by a shell."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gpuprov.verify.observers.libraries import UNPACKAGED

BELOW = ["-mindepth", "3", "-maxdepth", "3", "-path", "*/glibc-hwcaps/*/lib*.so*"]


@pytest.mark.parametrize(
    ("given", "folders"),
    [
        ("", []),
        ("/opt/a:/opt/b", ["/opt/a", "/opt/b"]),
        ("-delete:/opt/a", ["/opt/a"]),
        ("/opt/a -delete:lib:$ORIGIN", ["/opt/a"]),
        ("/opt/a\t-fprint\t/opt/b:(:!", ["/opt/a", "/opt/b"]),
    ],
)
def test_no_word_of_a_search_path_is_an_expression_of_find(
    tmp_path: Path, given: str, folders: list[str]
) -> None:
    find = tmp_path / "find"
    find.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" . >>{tmp_path}/words\n")
    find.chmod(0o755)
    command = (UNPACKAGED % shlex.quote(given)).replace("/etc/ld.so.conf.d/", f"{tmp_path}/")
    (tmp_path / "a.conf").write_text("# a\n/opt/c -ok:/opt/d\n")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], env=path, capture_output=True, timeout=20)
    asked = [words.split("\n") for words in (tmp_path / "words").read_text().split("\n.\n")[:-1]]
    others = [[word for word in words if not word.startswith("/usr/")] for words in asked]
    assert others == [
        [*folders, "/opt/c", "/opt/d", "-maxdepth", "1", "-name", "lib*.so*"],
        [*folders, "/opt/c", "/opt/d", *BELOW],
    ]
