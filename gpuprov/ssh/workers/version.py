"""What has to be alike here and on workers: functions travel as they are, and mean the same only there."""

from __future__ import annotations

import sys

from gpuprov import __version__

VERSION = f"gpuprov {__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"
