"""Names of packages in an index of apt on the disk, as apt reads them."""

from __future__ import annotations

from pathlib import Path

import gpuprov_sources
import pytest

HELPER = Path("/usr/lib/apt/apt-helper")


@pytest.mark.skipif(not HELPER.exists(), reason="needs apt")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Package: cuda-12\nVersion: 1\n", ["cuda-12"]),
        ("package: cuda-12\n", ["cuda-12"]),
        ("Package:  cuda-12\n", ["cuda-12"]),
        ("Package:\tcuda-12 \n", ["cuda-12"]),
        ("Package:\n cuda-12\n", ["?"]),
        ("Package: libstdc++6\n", ["libstdc++6"]),
        ("Package: cuda-120\nDescription: package: cuda-12\n Package: cuda-12\n", []),
    ],
)
def test_a_name_counts_as_apt_reads_it(tmp_path: Path, text: str, found: list[str]) -> None:
    index = tmp_path / "site_Packages"
    index.write_text(text)
    assert gpuprov_sources.offered(str(index), ["cuda-12", "libstdc++6"]) == found
