"""A pod with one container, by containerd's CRI: what the kubelet requests, as a program for a node.

The messages are those of Kubernetes' `api.proto` (runtime.v1), with the few fields that are needed here,
written and read by hand: Debian has no crictl. The pod has the node's network, and needs no CNI plugin.
"""

from __future__ import annotations

from tests.lab.stub_driver_node import StubDriverNode

IMAGE = "docker.io/site/pause:3.9"
NEEDS = "python3-grpcio"
"""Debian's package of the program's library."""

_ARCHIVE = f"""\
mkdir -p /root/image && cd /root/image && mkdir -p root
tar -ch /bin/sh /bin/sleep $(ldd /bin/sh /bin/sleep | grep -o '/[^ ]* ' | sort -u) | tar -x -C root
tar -C root -cf layer.tar .
digest=$(sha256sum layer.tar | cut -d' ' -f1)
cat >config.json <<END
{{"architecture": "amd64", "os": "linux", "config": {{"Entrypoint": ["/bin/sleep", "600"]}},
 "rootfs": {{"type": "layers", "diff_ids": ["sha256:$digest"]}}}}
END
echo '[{{"Config": "config.json", "RepoTags": ["{IMAGE}"], "Layers": ["layer.tar"]}}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar
ctr --namespace k8s.io images import --snapshotter native image.tar
"""
"""Import of an image with a shell; its entry point serves as the pause of a pod."""

_PROGRAM = """\
import sys, grpc

def varint(number):
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])

def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data

def first(message, number):
    at = 0
    def take():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(message):
        tag = take()
        size = take()
        if tag & 7 == 2:
            if tag >> 3 == number:
                return message[at:at + size]
            at += size
    return b""

def call(method, message):
    return channel.unary_unary("/runtime.v1.RuntimeService/" + method)(message, timeout=60)

def say(kind, error, trace):
    print(error.details() if isinstance(error, grpc.RpcError) else repr(error))

sys.excepthook = say
channel = grpc.insecure_channel("unix:///run/containerd/containerd.sock")
image, handler, device, environment = sys.argv[1:]
name = field(1, "asking")
on_host = field(8, field(2, field(1, field(1, 2))))
config = field(1, name + field(2, "uid") + field(3, "default")) + on_host
pod = first(call("RunPodSandbox", field(1, config) + field(2, handler)), 1)
try:
    container = field(1, name) + field(2, field(1, image)) + field(3, "/bin/sleep") + field(4, "600")
    key, _, value = environment.partition("=")
    container += field(6, field(1, key) + field(2, value)) if key else b""
    container += field(17, field(1, device)) if device else b""
    made = first(call("CreateContainer", field(1, pod) + field(2, container) + field(3, config)), 1)
    call("StartContainer", field(1, made))
    words = ["/bin/sh", "-c", "echo /dev/nvidia[0-9]*"]
    asked = field(1, made) + b"".join(field(2, word) for word in words) + field(3, 20)
    print(first(call("ExecSync", asked), 1).decode().strip())
finally:
    call("StopPodSandbox", field(1, pod))
    call("RemovePodSandbox", field(1, pod))
"""


def prepare(driven: StubDriverNode) -> None:
    """Install the program and its library, and import the image; containerd must run."""
    driven.node.run(f"apt-get -q -y install --no-install-recommends {NEEDS}")
    driven.node.run("cat >/root/pod.py", input=_PROGRAM)
    driven.node.run(_ARCHIVE)


def gpus_of_a_pod(
    driven: StubDriverNode, *, handler: str = "", device: str = "", environment: str = ""
) -> str:
    """Return the GPUs that the container of a pod sees, or the error.

    Args:
        handler: of the pod's RuntimeClass; containerd's default by default.
        device: name of a CDI device that the container requests.
        environment: variable of the container, `NAME=VALUE`.
    """
    return driven.says(f"python3 /root/pod.py {IMAGE} '{handler}' '{device}' '{environment}'")
