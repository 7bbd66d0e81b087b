"""Text that may be printed: URLs without credentials, text without passwords and tokens."""

from __future__ import annotations

import pytest

from gpuprov.untrusted.secrecy import public, public_settings
from gpuprov.untrusted.urls import HIDDEN, origin, origin_and_file, public_url
from tests.unit.untrusted.secrets import SHAPES, WORD


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://mirror.example/a/b.whl", "https://mirror.example/a/b.whl"),
        ("http://10.0.0.1:8080/simple/", "http://10.0.0.1:8080/simple/"),
        ("https://[2001:db8::1]:8443/x", "https://[2001:db8::1]:8443/x"),
        ("https://me:pw@mirror.example/x", "https://mirror.example/x"),
        ("https://token@mirror.example", "https://mirror.example"),
        ("https://me:p@ss@mirror.example/x", "https://mirror.example/x"),
        ("https://me:p/ss@mirror.example/x", "https://(hidden)"),
        ("https://me:123/4@mirror.example/x", "https://(hidden)"),
        ("https://me:12?3@mirror.example/x", "https://(hidden)"),
        ("https://me:a@b?c@mirror.example/x", "https://(hidden)"),
        ("https://s3.example/b/x.zip?X-Amz-Signature=abc&y=1", "https://s3.example/b/x.zip?(hidden)"),
        ("https://x.example/y#sha256=1", "https://x.example/y#(hidden)"),
        (
            "https://hooks.example/services/T0/B0/abcdefghijklmnopqrstuvwx",
            "https://hooks.example/services/T0/B0/(hidden)",
        ),
        (
            "https://x.example/8d6f1c1e-0000-4000-8000-1234567890ab/x",
            "https://x.example/(hidden)/x",
        ),
        ("https://x.example/a;session=1/x", "https://x.example/(hidden)/x"),
        (
            "https://x.example/compute/cuda/repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb",
            "https://x.example/compute/cuda/repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb",
        ),
        ("no address", HIDDEN),
    ],
)
def test_a_url_is_public_without_what_opens_it(url: str, expected: str) -> None:
    assert public_url(url) == expected


def test_a_hooks_path_is_its_permission() -> None:
    assert origin("https://me:pw@hooks.example:8443/services/T0/short?x=1") == "https://hooks.example:8443"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:pw@mirror.example/own.yml?x=1", "https://mirror.example/own.yml"),
        ("https://mirror.example/s/short/own.yml", "https://mirror.example/(hidden)/own.yml"),
        ("https://me:p/w@mirror.example/own.yml", "https://(hidden)"),
        ("https://mirror.example", "https://mirror.example"),
    ],
)
def test_folders_of_a_path_may_be_the_permission(url: str, expected: str) -> None:
    assert origin_and_file(url) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_text_is_without_what_opens_something(shape: str) -> None:
    """Check that secrets of each form are removed from a text, and other lines remain."""
    assert WORD in shape
    for text in (shape, f"Nov 24 08:00:00 gpu1 dockerd[12]: {shape}", f"first\n{shape}\nlast"):
        assert WORD not in public(text)
    assert public(f"first\n{shape}\nlast").startswith("first\n")


@pytest.mark.parametrize(
    "text",
    [
        "pip: ERROR: Could not find a version that satisfies the requirement click==8.5.1",
        "https://mirror.example/own.lock.yml: HTTP 404",
        "NVRM: Xid (PCI:0000:00:06): 79, pid=1234, GPU has fallen off the bus.",
        "x has the SHA-256 " + "0a" * 32 + "; expected " + "1b" * 32,
        "libcudnn9 9.15.0.57-1 GPU-8f1c0000-1111-2222-3333-444444444444 0000:07:00.0",
        "the authors of 10 keys passed 3 checks",
        "bypass, compass, keyboard, monkey=1",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Check that texts without secrets are not changed."""
    assert public(text) == text


def test_64_bits_in_hexadecimal_digits_are_a_token() -> None:
    assert public_url("https://hooks.example/t/0123456789abcdef/x") == "https://hooks.example/t/(hidden)/x"


def test_settings_keep_what_follows_a_blank() -> None:
    """Keep the output of `sshd -T`, and hide values after `:` and `=`, users of URLs and tokens."""
    kept = "passwordauthentication no\npubkeyauthentication yes\nclientalivecountmax 3"
    assert public_settings(kept) == kept
    hidden = '"auth": "hunter2",\npassword=hunter2\nHTTPS_PROXY=http://me:hunter2@proxy:3128\n'
    assert "hunter2" not in public_settings(hidden)
    assert "HTTPS_PROXY=http://proxy:3128" in public_settings(hidden)
    command = "ExecStart=/opt/agent --api-token hunter2 --db-password=hunter2 --name x"
    assert public_settings(command) == "ExecStart=/opt/agent --api-token (hidden) --db-password=(hidden)"
