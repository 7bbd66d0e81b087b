"""User-data for cloud-init: the files of a first boot, and the start of their unit."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable

from gpuprov.errors import InvalidInput
from gpuprov.inventory.firstboot.files import UNIT, File

LIMIT = 16384
"""Bytes of user-data on EC2, before base64 ("Run commands when you launch an EC2 instance"); Azure takes
64 KiB, Google Compute Engine 256 KiB."""
# Another part of the user-data may run commands and write files of its own.
MERGE = [
    {"name": "list", "settings": ["append"]},
    {"name": "dict", "settings": ["no_replace", "recurse_list"]},
]


def user_data(files: Iterable[File], *, compress: bool = False) -> bytes:
    """A cloud-config that writes files and starts the unit.

    Args:
        compress: as a whole, by gzip: smaller, and for clouds and tools that take bytes.

    Raises:
        InvalidInput: it is larger than the smallest limit of the clouds.
    """
    config = {
        "merge_how": MERGE,
        "write_files": [_plain(each) if compress else _packed(each) for each in files],
        "runcmd": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", UNIT],
            # It waits for cloud-init, and cloud-init for what it runs here.
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
    """JSON, which is YAML: one key a line."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items())


def _plain(file: File) -> dict[str, str]:
    return {"path": file.path, "permissions": f"{file.mode:04o}", "content": file.text}


def _packed(file: File) -> dict[str, str]:
    content = base64.b64encode(gzip.compress(file.text.encode(), 9, mtime=0)).decode()
    return {**_plain(file), "encoding": "gz+b64", "content": content}
