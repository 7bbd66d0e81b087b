"""Version that must be equal here and on workers: functions are sent pickled, and need the same code."""

from __future__ import annotations

import sys

from gpuprov import __version__

VERSION = f"gpuprov {__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"
