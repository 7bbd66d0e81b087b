"""Stubs of libnvidia-ml and libcuda for failures before and under load, without a GPU.

The first word of /run/gpus selects the failure. The libraries are compiled on the node.
"""

from __future__ import annotations

from gpuprov.accept.node.cuda import _SIGNATURES
from gpuprov_lab import Node

HEAD = """
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int feels(const char *what) {
    char word[64] = "";
    FILE *file = fopen("/run/gpus", "r");
    if (file) { if (fscanf(file, "%63s", word) != 1) word[0] = 0; fclose(file); }
    return strcmp(word, what) == 0;
}
"""
NVML = """
int nvmlInit_v2(void) {
    if (feels("nvml-hangs")) sleep(1000);
    if (feels("nvml-crashes")) raise(SIGSEGV);
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = feels("none") ? 0 : 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)1; return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strcpy(text, "NVIDIA H200"); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strcpy(text, "GPU-0"); return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next) {
    *now = *next = feels("mig");
    return 0;
}
struct row { unsigned pid; unsigned long long used; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct row *rows) {
    *count = feels("used") || (feels("used-later") && access("/run/loaded", F_OK) == 0);
    rows[0].pid = 4711;
    rows[0].used = 900ull << 20;
    return 0;
}
"""
UNKNOWN = ("MemoryInfo", "UtilizationRates", "CurrentClocksThrottleReasons", "TotalEccErrors", "NvLinkState")
CUDA = """
int cuGetErrorName(int code, const char **text) {
    *text = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
int cuGetErrorString(int code, const char **text) { *text = "as this test has it"; return 0; }
int cuInit(unsigned flags) {
    if (feels("cuda-hangs")) sleep(1000);
    if (feels("cuda-crashes")) raise(SIGSEGV);
    if (feels("used-later")) fclose(fopen("/run/loaded", "w"));
    return 100;
}
"""


def install(node: Node) -> None:
    """Compile both libraries on the node, in place of the driver's."""
    own = {"cuInit", "cuGetErrorName", "cuGetErrorString"}
    nvml = HEAD + NVML + "".join(f"int nvmlDeviceGet{name}() {{ return 3; }}\n" for name in UNKNOWN)
    cuda = HEAD + CUDA + "".join(f"int {name}() {{ return 999; }}\n" for name in set(_SIGNATURES) - own)
    node.run(
        "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "
        "gcc libc6-dev procps >/dev/null"
    )
    for name, source in (("libnvidia-ml.so.1", nvml), ("libcuda.so.1", cuda)):
        node.run(f"gcc -w -shared -fPIC -x c -o /usr/lib/{name} -", input=source)
    node.run("ldconfig")


def feel(node: Node, what: str) -> None:
    """Select the failure from now on."""
    node.run(f"echo {what} >/run/gpus")
