"""`gpuprov.rb`: a formula for a tap of Homebrew, which installs `gpuprov.pyz`."""

from __future__ import annotations

import re
from pathlib import Path

from gpuprov.errors import InvalidInput
from maintenance.release.locked import pythons
from maintenance.release.pyz import digest

NAME = "gpuprov.rb"
FORMULA = """\
class Gpuprov < Formula
  desc "Prepares GPU servers and keeps them in a declared state"
  homepage "{homepage}"
  url "{url}"
  version "{version}"
  sha256 "{sha256}"
  license "GPL-3.0-or-later"

  depends_on "gnupg"
  depends_on "python@{python}"

  def install
    libexec.install "gpuprov.pyz"
    (bin/"gpuprov").write <<~SH
      #!/bin/sh
      exec "#{{Formula["python@{python}"].opt_bin}}/python{python}" "#{{libexec}}/gpuprov.pyz" "$@"
    SH
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/gpuprov --version")
  end
end
"""
_URL = re.compile(r"https://[A-Za-z0-9._~/%:@+-]+")


def formula(pyz: Path, version: str, url: str, homepage: str) -> str:
    """Return the formula of a release.

    Args:
        pyz: `gpuprov.pyz` of the release.
        version: its version.
        url: where the owner of the release uploads that file.
        homepage: address of the sources.

    Raises:
        InvalidInput: an address is not one of https.
    """
    for each in (url, homepage):
        if not _URL.fullmatch(each):
            raise InvalidInput(f"the address is {each!r}", expected="https://…, without quotes and blanks")
    python = "{}.{}".format(*pythons()[-2])
    return FORMULA.format(version=version, url=url, homepage=homepage, sha256=digest(pyz), python=python)
