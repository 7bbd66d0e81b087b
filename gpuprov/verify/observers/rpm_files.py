"""`host.package_files` with rpm: files of packages, by rpm's own checksums, sizes, modes and owners."""

from __future__ import annotations

from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.package_files import Compared, compare, comparison

# R: files by rpm's database, N: files now, C: checksums of the files. Configuration, documentation, licenses
# and ghosts are excluded, as are files that rpm did not install; a system may leave documentation out. `sort`
# writes long lists to /tmp, which a user can fill: it then prints nothing. Only with `-qa` rpm's status shows
# that it cannot read its database, which a user can lock: otherwise each package is not installed.
COMPARED = r"""
listed=$(
  rpm -qa --qf '[%{=NAME}\t%{=ARCH}\t<%{FILEFLAGS:fflags}>\t%{FILESTATES}\t%{FILEMODES:octal}'\
'\t%{LONGFILESIZES}\t%{FILEMTIMES}\t%{FILEUSERNAME} %{FILEGROUPNAME}\t%{FILEDIGESTS}\t%{FILENAMES}'\
'\t%{FILELINKTOS}\n]' -- {packages}
) || exit
rows() {
  printf '%s\n' "$listed" |
    awk -F '\t' -v arch="$(uname -m)" '
      NF == 11 && ($2 == arch || $2 == "noarch") && $3 !~ /[cdglr]/ && $4 == "0" && $5 !~ /^0*4....$/ &&
      $10 !~ /^\/usr\/share\/(doc|man|info|locale|help|lintian|gtk-doc)\/|\/docs?\//'
}
found() { tr '\n' '\0' | xargs -0 -r sh -c 'find "$@" -maxdepth 0 -printf "$0"' "$1" 2>/dev/null; }
{
  rows | sed 's/^/R\t/'
  rows | cut -f 10 | awk '!seen[$0]++' | found 'N\t%y\t%m\t%u %g\t%s\t%T@\t%p\t%l\n'
  for each in 32:md5sum 64:sha256sum 96:sha384sum 128:sha512sum; do
    order=$(rows | awk -F '\t' -v digits="${each%:*}" 'length($9) == digits + 0 { print $10 }' |
      found '%C@\t%y\t%s\t%p\n' | sort -rn) || printf 'C\tfailed\n'
    printf '%s\n' "$order" |
      awk -F '\t' -v left={budget} '$2 == "f" && $3 <= left { left -= $3; print $4 }' |
      tr '\n' '\0' | { xargs -0 -r "${each#*:}" -- || echo failed; } | sed 's/^/C\t/; s/  /\t/'
  done
} | awk -F '\t' '
  function row(each, state) { if (rows++ < {rows}) print name[each] "\t" each "\t" state }
  function permissions(mode) { return substr(mode, length(mode) - 3) + 0 }
  $1 == "R" {
    each = $11; name[each] = $2; mode[each] = $6; size[each] = $7; time[each] = $8; owner[each] = $9
    sum[each] = $10 ""; target[each] = $12
    kind[each] = $6 ~ /^0*12....$/ ? "l" : $6 ~ /^0*10....$/ ? "f" : "?"
  }
  $1 == "N" {
    split($6, seconds, "."); each = $7; type[each] = $2; bits[each] = $3; owns[each] = $4; bytes[each] = $5
    modified[each] = seconds[1]; leads[each] = $8
  }
  $1 == "C" && NF < 3 { unread = 1 }
  $1 == "C" { checked[$3] = $2 "" }
  END {
    if (unread) exit 1
    for (each in name) {
      if (sum[each] != "") { total += bytes[each]; if (each in checked) read += bytes[each] }
      if (!(each in type) || type[each] == "d") row(each, "is missing")
      else if (type[each] != kind[each] || kind[each] == "l" && leads[each] != target[each])
        row(each, "was changed")
      else {
        if (owns[each] != owner[each] || kind[each] != "l" && bits[each] + 0 != permissions(mode[each]))
          row(each, "has another mode or owner")
        if (kind[each] == "f") {
          other = each in checked ? checked[each] != sum[each] : modified[each] != time[each]
          if (bytes[each] != size[each] || other) row(each, "was changed")
        }
      }
    }
    printf "read\t%.0f\t%.0f\n", read, total
  }'
"""


class RpmFiles(Observed):
    """Observer of the files of rpm's packages, with the methods of `PackageFiles`."""

    def differing(self, packages: list[str]) -> list[str]:
        """Return the files that are missing or changed, as `PACKAGE PATH STATE`, sorted.

        Checksums are compared for at most `BUDGET` bytes; of further files size and time of modification
        count. Not reported are documentation, and more than `ROWS` changes.

        Raises:
            NodeFailed: the files cannot be compared.
        """
        return sorted({" ".join(row) for row in self._answer(packages)[0]})

    def read(self, packages: list[str]) -> tuple[int, int]:
        """Return the bytes that were compared by checksum, and those of all files with a checksum.

        Raises:
            NodeFailed: the files cannot be compared.
        """
        return self._answer(packages)[1]

    def long(self, packages: list[str]) -> list[str]:
        """Return the command that takes long: the comparison of all files."""
        return [comparison(COMPARED, packages)]

    def _answer(self, packages: list[str]) -> Compared:
        """Return the comparison of the packages' files, see `compare`."""
        return compare(self, COMPARED, packages)

    def __repr__(self) -> str:
        return "<files of rpm's packages>"
