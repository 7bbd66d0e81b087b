"""Values that a lock implies: which modules are compiled on nodes."""

from __future__ import annotations

import pytest

from gpuprov.model.lock import read_lock
from tests import RECORDED_LOCK


@pytest.mark.parametrize(
    ("package", "compiled"),
    [
        ("nvidia-kernel-dkms", True),
        ("nvidia-dkms-580-server-open", True),
        ("kmod-nvidia-latest-dkms", True),
        ("nvidia-headless-no-dkms-580-server-open", False),
        ("linux-modules-nvidia-580-server-open-generic", False),
    ],
)
def test_a_module_is_compiled_by_packages_with_dkms(package: str, *, compiled: bool) -> None:
    [group] = read_lock(RECORDED_LOCK).groups.values()
    driver = group.components.driver.model_copy(update={"module_package": package})
    assert driver.compiled is compiled
