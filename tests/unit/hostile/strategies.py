"""Hypothesis strategies for hostile content of mirrors, nodes and users' files, for tests and campaigns.

Each strategy generates input for one entry point, mostly nearly valid: random bytes fail the first check.
"""

from __future__ import annotations

import base64
import json
import zipfile
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from io import BytesIO

import paramiko
from hypothesis import strategies as st

NOISE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LINE = NOISE.map(lambda text: text.replace("\n", ""))
BYTES = st.binary(max_size=120)

DATES = st.one_of(
    st.timedeltas(timedelta(days=-40), timedelta(days=40)).map(
        lambda since: format_datetime(datetime(2026, 5, 14, tzinfo=UTC) + since, usegmt=True)
    ),
    st.sampled_from(
        [
            "Thu, 14 May 2026 09:00:00 GMT",
            "Thu, 14 May 2026 09:00:00 -0000",
            "Mon, 01 Jan 0001 00:00:00 +2359",
            "Fri, 31 Dec 9999 23:59:59 -2359",
            "Thu, 99 May 99999999999999 99:99:99 +99999999",
            "1 2 3 4 5",
            "",
        ]
    ),
    LINE,
)
SUMS = st.one_of(st.just("0" * 64), st.sampled_from(["", "../" * 21, "٣" * 64, "f" * 63]), LINE)
SIZES = st.one_of(st.integers().map(str), st.sampled_from(["9" * 5000, "-1", "1e3", "٣", ""]), LINE)
ROWS = st.tuples(SUMS, SIZES, st.just("main/binary-amd64/Packages") | LINE).map(" ".join)
_FIELDS = st.one_of(
    st.tuples(st.sampled_from(["Suite", "Codename"]), st.sampled_from(["stable", "buster"]) | LINE),
    st.tuples(st.sampled_from(["Date", "Valid-Until"]), DATES),
    st.tuples(st.just("SHA256"), st.lists(ROWS, max_size=3).map(lambda rows: "\n " + "\n ".join(rows))),
    st.tuples(st.sampled_from(["SHA256", "Acquire-By-Hash", "Components"]) | LINE, NOISE),
)
RELEASES: st.SearchStrategy[bytes] = BYTES | st.lists(_FIELDS, max_size=8).map(
    lambda fields: "".join(f"{name}: {value}\n" for name, value in fields).encode()
)
"""Texts of Release files."""

_DATA = st.tuples(st.sampled_from(["primary", "modules", "other"]), SUMS, SIZES, SIZES, DATES | SIZES).map(
    lambda given: (
        f'<data type="{given[0]}"><checksum type="sha256">{_xml(given[1])}</checksum><location href="x.gz"/>'
        f"<size>{_xml(given[2])}</size><open-size>{_xml(given[3])}</open-size>"
        f"<timestamp>{_xml(given[4])}</timestamp></data>"
    )
)
REPOMDS: st.SearchStrategy[bytes] = BYTES | st.lists(_DATA, max_size=4).map(
    lambda entries: (
        f'<repomd xmlns="http://linux.duke.edu/metadata/repo">{"".join(entries)}</repomd>'.encode()
    )
)
"""Texts of repomd.xml."""


def _xml(text: str) -> str:
    """Return printable text with `&` and `<` escaped for XML."""
    plain = "".join(letter for letter in text if letter.isprintable())
    return plain.replace("&", "&amp;").replace("<", "&lt;")


_HEADS = st.sampled_from([0x99, 0xC6, 0xCE, 0xC2, 0x9B, 0xB9, 0x98, 0x9A]) | st.integers(0, 255)
_LENGTHS = st.sampled_from([b"", b"\x05", b"\xc0", b"\xff\0\0", b"\xff\0\0\0\x05", b"\xe1", b"\0\x05"])
_VERSIONS = st.sampled_from([b"\x04", b"\x05", b"\x06", b""])
_PACKETS = st.tuples(_HEADS.map(lambda head: bytes([head])), _LENGTHS, _VERSIONS, BYTES).map(b"".join)
_PLAIN_KEYRINGS = BYTES | st.lists(_PACKETS, max_size=4).map(b"".join)
_EDGE = b"PGP PUBLIC KEY BLOCK-----"
_BODIES = _PLAIN_KEYRINGS.map(base64.b64encode) | LINE.map(str.encode)
KEYRINGS: st.SearchStrategy[bytes] = _PLAIN_KEYRINGS | _BODIES.map(
    lambda body: b"-----BEGIN " + _EDGE + b"\n\n" + body + b"\n-----END " + _EDGE + b"\n"
)
"""Key files, binary and armored."""

GOOD_KEY = paramiko.ECDSAKey.generate()
_KINDS = st.sampled_from(["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ssh-dss", "none", ""])
_BLOBS = st.one_of(
    BYTES,
    st.tuples(st.sampled_from([b"ssh-ed25519", b"ssh-rsa", b"ecdsa-sha2-nistp256", b"\xff"]), BYTES).map(
        lambda parts: len(parts[0]).to_bytes(4, "big") + parts[0] + parts[1]
    ),
    st.integers(0, 110).map(lambda cut: GOOD_KEY.asbytes()[:cut]),
    st.just(GOOD_KEY.asbytes()),
)
HOST_KEYS: st.SearchStrategy[str] = LINE | st.tuples(
    _KINDS, _BLOBS.map(lambda blob: base64.b64encode(blob).decode()) | LINE, LINE
).map(" ".join)
"""`TYPE BASE64 [COMMENT]`, as a node prints its host keys."""

_NAMES = st.sampled_from(
    ["gpu01", "*", "?pu*", "!gpu01,*", "[gpu01]:22", "|1|AAAA|AAAA", "|1|x|y", "|2|", "||||", "@revoked", "#"]
)
_MARKERS = st.sampled_from(["", "@revoked ", "@cert-authority ", "@other "])
KNOWN_HOSTS: st.SearchStrategy[bytes] = BYTES | st.lists(
    st.tuples(_MARKERS, _NAMES | LINE, st.just(" "), HOST_KEYS).map("".join), max_size=4
).map(lambda lines: "\n".join(lines).encode())
"""Known-hosts files."""

_NUMBERS = st.one_of(
    st.integers(0, 9000).map(str), st.integers().map(str), st.sampled_from(["٣", "", "999999999", "9" * 5000])
)
PROCESSORS: st.SearchStrategy[str] = LINE | st.lists(
    _NUMBERS | st.tuples(_NUMBERS, _NUMBERS).map("-".join), max_size=30
).map(",".join)
"""Lists of processors, as nvidia-smi prints them."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NOISE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NOISE, inner, max_size=3),
    max_leaves=6,
)
_SUMMED = st.dictionaries(st.sampled_from(["gpus.json", "../gpus.json", "catalog.json"]) | NOISE, SUMS | JSON)
_MANIFEST = st.fixed_dictionaries(
    {},
    optional={
        "schema": st.just("gpuprov.catalog-release/1") | JSON,
        "version": st.sampled_from(["2026.11.22", "2026", "580.95", "٢٠٢٦.1.1", "2026.11.22\n"]) | JSON,
        "format": st.sampled_from([1, 2, -1, 1e308]) | JSON,
        "files": _SUMMED | JSON,
    },
)
MANIFESTS: st.SearchStrategy[bytes] = BYTES | (_MANIFEST | JSON).map(lambda said: json.dumps(said).encode())
"""Manifests of a catalog's release."""

_ENTRY = st.sampled_from(["gpuprov_catalog/gpus.json", "gpuprov_catalog/../../x.json", "x/y", "/etc/passwd"])


def _zip(entries: list[tuple[str, bytes]], cut: int, flipped: int) -> bytes:
    """Return a wheel of these entries, truncated by `cut` bytes and with one byte changed."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in dict(entries).items():
            wheel.writestr(name, content)
    content = bytearray(packed.getvalue())
    content[flipped % len(content)] ^= 0xFF
    return bytes(content[: len(content) - cut])


WHEELS: st.SearchStrategy[bytes] = st.builds(
    _zip, st.lists(st.tuples(_ENTRY, BYTES), max_size=3), st.sampled_from([0, 1, 30]), st.integers(0, 600)
)
"""Wheels that are truncated or changed."""

_CHIP = st.fixed_dictionaries(
    {},
    optional={
        "devid": st.sampled_from(["0x2487", "0xZZZZ", "2487", "0x12487"]) | JSON,
        "name": NOISE | JSON,
        "legacybranch": st.sampled_from(["470.xx", "xx", "9" * 5000]) | JSON,
    },
)
_BEGIN = "Appendix A. Supported NVIDIA GPU Products"
_APPENDIX = st.lists(
    st.sampled_from(
        [
            _BEGIN,
            " NVIDIA GeForce RTX 3060          2487   K",
            "The 470.xx driver supports the following set of GPUs:",
            f"The {'9' * 5000}.xx driver supports the following set of GPUs:",
            "Appendix B.",
        ]
    )
    | LINE,
    max_size=6,
).map(lambda lines: "\n".join([_BEGIN, *lines]))
GPU_LISTS: st.SearchStrategy[str] = _APPENDIX | (
    st.fixed_dictionaries({"chips": st.lists(_CHIP, max_size=3) | JSON}) | JSON
).map(json.dumps)
"""Texts of supported-gpus.json and of a driver's README."""
