"""Commands that the doctor prints, executed: one setting is removed, the rest of the file is unchanged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov.doctor.lines import without_folder, without_line, without_text, without_variable


def typed(line: str) -> None:
    """Run a command in a shell, without its `sudo`."""
    subprocess.run(line.removeprefix("sudo "), shell=True, check=True)  # noqa: S602 - it is meant to be typed


VARIABLES = {
    "A=1\nexport NCCL_X=2\n": "A=1\n",
    "NCCL_X=2\nNCCL_XY=3\n#NCCL_X=4\n": "NCCL_XY=3\n#NCCL_X=4\n",
    "  NCCL_X=2\nMY_NCCL_X=3\n": "MY_NCCL_X=3\n",
}
FOLDERS = {
    "V=/usr/local/cuda/compat\n": "V=\n",
    'V="/x/compat"\n': 'V=""\n',
    "export V=/x/compat:/usr/lib\n": "export V=/usr/lib\n",
    'V="/usr/lib:/x/compat"\n': 'V="/usr/lib"\n',
    "V=/a:/x/compat:$V\n": "V=/a:$V\n",
    "V=/a:/x/compat-old\nW=/x/compat\n": "V=/a:/x/compat-old\nW=/x/compat\n",
    "V=/x/compat:/y/compat:/z\n": "V=/z\n",
}
TEXTS = {"/opt/a\n/o.t/stubs\n /opt/stubs2\n": "/opt/a\n /opt/stubs2\n", "/oxt/stubs\n": "/oxt/stubs\n"}


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [
        *((lambda p: without_variable(p, "NCCL_X"), *each) for each in VARIABLES.items()),
        *((lambda p: without_folder(p, "V", "compat"), *each) for each in FOLDERS.items()),
        *((lambda p: without_text(p, "/o.t/stubs"), *each) for each in TEXTS.items()),
        (lambda p: without_line(f"{p}:2"), "a\nblacklist nvidia\nc\n", "a\n# blacklist nvidia\nc\n"),
    ],
)
def test_typed(line: Callable[[str], str], before: str, after: str, tmp_path: Path) -> None:
    """Check what a printed command changes in a file, even if its path has characters of the shell."""
    file = tmp_path / "it's; a $(touch x) file.sh"
    file.write_text(before)
    typed(line(str(file)))
    assert file.read_text() == after
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_what_is_no_file_or_no_name_gets_words() -> None:
    assert without_line("kernel command line") == "remove it from: 'kernel command line'"
    assert without_variable("/etc/x", "A; rm -r /") == "remove the line from /etc/x"
    assert without_text("/etc/x", "stubs|.*") == "remove the line 'stubs|.*' from /etc/x"
