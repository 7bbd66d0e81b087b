"""User-data for cloud-init, which writes the files of a first boot and starts their unit."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable

from gpuprov.errors import InvalidInput
from gpuprov.inventory.firstboot.files import UNIT, File

LIMIT = 16384
"""Limit of user-data in bytes on EC2, before base64 ("Run commands when you launch an EC2 instance"); Azure
allows 64 KiB, Google Compute Engine 256 KiB."""
# Lists are appended: another part of the user-data may also run commands and write files.
MERGE = [
    {"name": "list", "settings": ["append"]},
    {"name": "dict", "settings": ["no_replace", "recurse_list"]},
]


def user_data(files: Iterable[File], *, compress: bool = False) -> bytes:
    """Return a cloud-config that writes files and starts the unit of the first boot, without waiting for it.

    Args:
        compress: whether to compress all of it with gzip: smaller, for clouds and tools that accept bytes.

    Raises:
        InvalidInput: the user-data is larger than `LIMIT`, the smallest of the clouds' limits.
    """
    config = {
        "merge_how": MERGE,
        "write_files": [_plain(each) if compress else _packed(each) for each in files],
        "runcmd": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", UNIT],
            # Not waited for: the unit waits for cloud-init, which waits for these commands.
            ["systemctl", "start", "--no-block", UNIT],
        ],
    }
    text = "#cloud-config\n# Written by `gpuprov inventory export cloud-init`.\n" + _yaml(config)
    data = gzip.compress(text.encode(), 9, mtime=0) if compress else text.encode()
    if len(data) > LIMIT:
        do = (
            "fetch the lock with --lock-url"
            if compress
            else "use --compress, or fetch the lock with --lock-url"
        )
        raise InvalidInput(f"user-data of {len(data)} bytes", expected=f"at most {LIMIT}", do=do)
    return data


def _yaml(config: dict[str, object]) -> str:
    """Return JSON, which is also YAML, with one key per line, as short as possible."""
    return "".join(f"{key}: {json.dumps(value, separators=(',', ':'))}\n" for key, value in config.items())


def _plain(file: File) -> dict[str, str]:
    """Return a file as an entry of `write_files`, with its text."""
    return {"path": file.path, "permissions": f"{file.mode:04o}", "content": file.text}


def _packed(file: File) -> dict[str, str]:
    """Return a file as an entry of `write_files`, with its text compressed by gzip, in base64."""
    content = base64.b64encode(gzip.compress(file.text.encode(), 9, mtime=0)).decode()
    return {**_plain(file), "encoding": "gz+b64", "content": content}
