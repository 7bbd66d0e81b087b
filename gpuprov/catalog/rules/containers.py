"""Rules of container engines and the NVIDIA container toolkit.

Source: NVIDIA/nvidia-container-toolkit changelog; NVIDIA cloud-native documentation.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import ContainerToolkit, EngineNeed
from gpuprov.catalog.version import Version


def unmet_docker_needs(catalog: Catalog, docker: Version, toolkit: Version | None) -> Iterable[EngineNeed]:
    """Yield features for which Docker is too old: `--gpus` needs 19.03, CDI of toolkit 1.19.1 and later
    26.1.0. Without a toolkit, features of certain releases are left out.
    """
    return _unmet(catalog.tables["containers.docker_needs"], docker, toolkit)


def unmet_docker_cdi_needs(catalog: Catalog, docker: Version) -> Iterable[EngineNeed]:
    """Yield features of the Container Device Interface for which Docker is too old with any toolkit."""
    return _unmet(catalog.tables["containers.docker_cdi_needs"], docker, None)


def unmet_containerd_needs(
    catalog: Catalog, containerd: Version, toolkit: Version | None
) -> Iterable[EngineNeed]:
    """Yield features for which containerd is too old, if pods get GPUs by the Container Device Interface."""
    return _unmet(catalog.tables["containers.containerd_needs"], containerd, toolkit)


def unmet_podman_needs(catalog: Catalog, podman: Version, toolkit: Version | None) -> Iterable[EngineNeed]:
    """Yield features for which Podman is too old, which gives GPUs only by the Container Device Interface."""
    return _unmet(catalog.tables["containers.podman_needs"], podman, toolkit)


def _unmet(needs: Iterable[EngineNeed], engine: Version, toolkit: Version | None) -> Iterable[EngineNeed]:
    """Yield the needs of this toolkit and of all toolkits that an engine's version does not meet."""
    for need in needs:
        concerned = need.from_toolkit is None or (toolkit is not None and toolkit >= need.from_toolkit)
        if concerned and engine < need.at_least:
            yield need


def newest_toolkit(
    catalog: Catalog, docker: Version | None, podman: Version | None
) -> ContainerToolkit | None:
    """Return the newest container toolkit whose own requirements these engines meet (None: any), or None."""
    for toolkit in reversed(catalog.container_toolkits):
        unmet = [
            *(unmet_docker_needs(catalog, docker, toolkit.version) if docker else ()),
            *(unmet_podman_needs(catalog, podman, toolkit.version) if podman else ()),
        ]
        if not any(need.from_toolkit for need in unmet):
            return toolkit
    return None
