"""Places of the simulator's state on a node."""

ROOT_VARIABLE = "GPUPROV_SIMULATOR_ROOT"
"""Environment variable that names a node's root tree; unset means that this program runs on the node."""

HOME = "var/lib/gpuprov-sim"
RUN = "run/gpuprov-sim"
LIBRARY = "libnvidia-ml.so"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)
