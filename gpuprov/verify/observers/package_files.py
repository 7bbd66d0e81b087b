"""`host.package_files` with dpkg: files of packages, by their checksums and the record of the last apply."""

from __future__ import annotations

import re
import shlex
from functools import cached_property

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import lines_of
from gpuprov.verify.observers.base import Observed

BUDGET = 256 << 20
"""Bytes of files that are read at the most, those first that changed last."""
ROWS = 1000
Compared = tuple[list[tuple[str, str, str]], tuple[int, int]]
"""Name, path and state of differing files; bytes that were compared by checksum, and bytes of all."""
DIVERSIONS = "dpkg-divert --list"
OVERRIDES = "dpkg-statoverride --list || test $? -eq 1"
DOCUMENTATION = re.compile(r"/usr/share/(?:doc|man|info|locale|help|lintian|gtk-doc)/|/(?:[^/]+/)*docs?/")
LOCAL, PACKAGED = "local diversion of ", "diversion of "
# One line of a file in a list is one path; a package's list has its architecture in its name if it is one of
# several that can be installed.
STEMS = (
    "cd /var/lib/dpkg/info || exit; own=$(dpkg --print-architecture); set --;"
    ' for name in {packages}; do for stem in "$name" "$name:$own";'
    ' do [ ! -e "$stem.list" ] || set -- "$@" "$stem.list"; done; done;'
)
OWNERS = STEMS + ' [ $# = 0 ] || grep -HxF {paths} -- "$@" || test $? -eq 1'
# S: stamps of the lists, R: record, K: configuration files, M: checksums of the packages, N: files now,
# C: checksums of the files. Configuration files are excluded, as in the record, and documentation, which a
# system may leave out. `sort` writes long lists to /tmp, which a user can fill: it then prints nothing.
COMPARED = (
    STEMS
    + r"""
sums() { for each; do [ ! -e "${each%.list}.md5sums" ] || echo "${each%.list}.md5sums"; done; }
record() { cat /var/lib/gpuprov/files 2>/dev/null; }
checksums() {
  for each in $(sums "$@"); do echo "# $each"; cat "$each"; done |
    grep -vE '^.{34}(.*/docs?/|usr/share/(doc|man|info|locale|help|lintian|gtk-doc)/)'
}
found() { tr '\n' '\0' | xargs -0 -r sh -c 'find "$@" -maxdepth 0 -printf "$0"' "$1" 2>/dev/null; }
{
  stat -c 'S %Y %n' -- "$@" | sed "s/\(:$own\)\{0,1\}\.list\$//"
  record | sed 's/^/R /'
  for each; do cat "${each%.list}.conffiles" 2>/dev/null; done | sed 's,^[^/]*,K ,'
  checksums "$@" | sed "s/^/M /; s/^\(M # .*\)\.md5sums\$/\1/; s/^\(M # .*\):$own\$/\1/"
  { record | sed -n 's/^[^#/]*\(\/[^\t]*\)\t.*/\1/p'; checksums "$@" | sed -n 's/^[0-9a-f]\{32\}  /\//p'; } |
    awk '!seen[$0]++' | found 'N %y %m %U %G %s %T@ %p\t%l\n'
  order=$(checksums "$@" | sed -n 's/^[0-9a-f]\{32\}  /\//p' | found '%C@ %y %s %p\n' |
    sort -rn) || echo C failed
  printf '%s\n' "$order" |
    awk -v left={budget} '$2 == "f" && $3 <= left { left -= $3; print substr($0, index($0, "/")) }' |
    tr '\n' '\0' | { xargs -0 -r md5sum -- || echo failed; } | sed 's/^/C /'
} | awk '
  function where() { sub(/\t.*/, ""); return substr($0, index($0, "/")) }
  function row(name, each, state) { if (rows++ < {rows}) print name "\t" each "\t" state }
  $1 == "S" { stamp[$3] = $2 }
  $1 == "R" && $2 == "#" { name = $3; known = stamp[name] "" == $4 ""; next }
  $1 == "R" && known {
    target = $0; sub(/^[^\t]*\t/, "", target)
    what = $2 " " $6; owner = $3 " " $4 " " $5; time = $7; each = where()
    of[each] = name; was[each] = what " " target; owned[each] = owner; modified[each] = time
  }
  $1 == "K" { configures[substr($0, 3)] = 1 }
  $1 == "M" && $2 == "#" { name = $3; next }
  $1 == "M" { each = "/" substr($0, 37); if (!(each in configures)) { sum[each] = $2 ""; by[each] = name } }
  $1 == "N" {
    target = $0; sub(/^[^\t]*\t/, "", target)
    kind = $2; size = $6; owner = $3 " " $4 " " $5; split($7, seconds, "."); time = seconds[1]; each = where()
    type[each] = kind; bytes[each] = size; now[each] = kind " " size " " target
    owns[each] = owner; modifies[each] = time
  }
  $1 == "C" && NF == 2 { unread = 1 }
  $1 == "C" { checked[substr($0, 37)] = $2 "" }
  END {
    if (unread) exit 1
    for (each in sum) {
      total += bytes[each]; if (each in checked) read += bytes[each]
      if (!(each in type) || type[each] == "d") row(by[each], each, "is missing")
      else if (type[each] != "f" || each in checked && checked[each] != sum[each])
        row(by[each], each, "was changed")
    }
    for (each in of) {
      if (!(each in type) || type[each] == "d") row(of[each], each, "is missing")
      else if (now[each] != was[each]) row(of[each], each, "was changed")
      else {
        if (owns[each] != owned[each]) row(of[each], each, "has another mode or owner")
        if (type[each] == "f" && modifies[each] != modified[each] && !(each in checked))
          row(of[each], each, "was changed")
      }
    }
    printf "read\t%.0f\t%.0f\n", read, total
  }'
"""
)


class PackageFiles(Observed):
    """Observer of the files of packages."""

    def differing(self, packages: list[str]) -> list[str]:
        """Return the files that are missing, diverted or changed, as `PACKAGE PATH STATE`, sorted.

        Checksums are compared for at most `BUDGET` bytes; type, size, time, mode and owner with the record of
        the last apply, if it is of the installed version. Configuration files, documentation, files that a
        package diverts, and modes of dpkg-statoverride are not reported, nor more than `ROWS` changes.

        Raises:
            NodeFailed: dpkg fails, or the files cannot be compared.
        """
        stated = {line.split(" ", 3)[-1] for line in lines_of(self.ask(OVERRIDES))}
        elsewhere = {path: by for path, (_, by) in self._diversions.items()}
        rows = [
            (name, path, state)
            for name, path, state in self._answer(packages)[0]
            if elsewhere.get(path, name) == name and not (path in stated and "mode" in state)
        ]
        return sorted(" ".join(row) for row in {*rows, *self._diverted(packages)})

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
        """Return the comparison of the packages' files; raises as `compare`."""
        return compare(self, COMPARED, packages)

    def _diverted(self, packages: list[str]) -> list[tuple[str, str, str]]:
        """Return name, path and state of the files of packages that an administrator diverts; [] without any;
        raises as `ask`.

        A package may divert files; documentation is excluded.
        """
        known = {path: to for path, (to, by) in self._diversions.items() if by == ":"}
        if not known or not packages:
            return []
        paths = " ".join(f"-e {shlex.quote(path)}" for path in known)
        rows = (
            line.partition(".list:") for line in lines_of(self.ask(filled(OWNERS, packages, paths=paths)))
        )
        owners = (
            (name.partition(":")[0], path)
            for name, _, path in rows
            if path in known and not DOCUMENTATION.match(path)
        )
        return [(name, path, f"is diverted to {known[path]}") for name, path in owners]

    @cached_property
    def _diversions(self) -> dict[str, tuple[str, str]]:
        """The diversions of all files, see `parse_diversions`; raises as `ask`."""
        return parse_diversions(self.ask(DIVERSIONS))

    def __repr__(self) -> str:
        return "<package files>"


def compare(observer: Observed, command: str, packages: list[str]) -> Compared:
    """Compare the files of packages; return no rows and (0, 0) without packages.

    Args:
        command: the comparison, with `{packages}`, `{budget}` and `{rows}`.

    Raises:
        NodeFailed: the files cannot be compared.
    """
    if not packages:
        return [], (0, 0)
    answer = observer.run(comparison(command, packages))
    if not answer.succeeded:
        said = str(answer.stderr).strip().splitlines()[-1:]
        raise NodeFailed(": ".join(["the packages' files cannot be compared", *said]))
    return parse_compared(answer.stdout)


def comparison(command: str, packages: list[str]) -> str:
    """Return the command that compares the files of packages, with the arguments of `compare`."""
    return filled(command, packages, budget=str(BUDGET), rows=str(ROWS))


def filled(command: str, packages: list[str], **values: str) -> str:
    """Return a command with its names in braces replaced; `packages` are quoted, other values are not."""
    for name, value in {"packages": " ".join(map(shlex.quote, packages)), **values}.items():
        command = command.replace("{" + name + "}", value)
    return command.strip()


def parse_diversions(text: str) -> dict[str, tuple[str, str]]:
    """Parse lines `diversion of PATH to PATH by PACKAGE` and `local diversion of PATH to PATH`.

    Returns:
        Path, both with and without `/usr`, → other name, and the package; `:` for an administrator.
    """
    found = {}
    for line in lines_of(text):
        words, _, by = (line, "", ":") if line.startswith(LOCAL) else line.rpartition(" by ")
        path, to, other = words.removeprefix(LOCAL).removeprefix(PACKAGED).partition(" to ")
        if to and path.startswith("/"):
            again = path.removeprefix("/usr") if path.startswith("/usr/") else f"/usr{path}"
            found[path] = found[again] = (other, by)
    return found


def parse_compared(text: str) -> Compared:
    """Parse lines of name, path and state, and the last one: `read`, bytes that were read, bytes of all.

    Raises:
        NodeFailed: the last line is missing.
    """
    rows, read = [], None
    for words in (line.split("\t") for line in lines_of(text)):
        if len(words) == 3 and words[0] == "read" and words[1].isdecimal() and words[2].isdecimal():
            read = int(words[1]), int(words[2])
        elif len(words) == 3:
            rows.append((words[0], words[1], words[2]))
    if read is None:
        raise NodeFailed("the comparison of packages' files did not end")
    return rows, read
