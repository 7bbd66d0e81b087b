"""A Kubernetes API server with the requests that `kubectl get`, `patch` and `drain` of nodes make."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

NODE = "gpu01"
POD = re.compile(r"/api/v1/namespaces/default/pods/([^/]+)")
CORE = [
    {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "verbs": ["get", "patch"]},
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]},
    {
        "name": "configmaps",
        "singularName": "configmap",
        "namespaced": True,
        "kind": "ConfigMap",
        "verbs": ["get"],
    },
    {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "kind": "Eviction",
        "group": "policy",
        "version": "v1",
        "verbs": ["create"],
    },
]
APPS = [
    {
        "name": "daemonsets",
        "singularName": "daemonset",
        "namespaced": True,
        "kind": "DaemonSet",
        "verbs": ["get"],
    }
]
RUNTIME = [
    {
        "name": "runtimeclasses",
        "singularName": "runtimeclass",
        "namespaced": False,
        "kind": "RuntimeClass",
        "verbs": ["get"],
    }
]


@dataclass
class ApiNode:
    """A node of the cluster, and its pods.

    Attributes:
        node: the Node.
        pods: name → owner's kind of the pods on it; a name without an owner has "".
        refusals: number of evictions that the disruption budget still refuses; -1 for all.
        requests: verb and path of the requests that change something, in their order.
    """

    name: str = NODE
    node: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, str] = field(default_factory=lambda: {"trainer-0": "ReplicaSet", "plugin-x": "DaemonSet"})
    refusals: int = 0
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        metadata = {"name": self.name, "uid": "1", "annotations": {"site": "kept"}}
        self.node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}} | self.node

    @property
    def cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"]["annotations"]
        return found

    def has(self, path: str, query: dict[str, list[str]]) -> bool:
        """Return whether a request is about this node, or about its pods."""
        selected = query.get("fieldSelector") == [f"spec.nodeName={self.name}"]
        pod = POD.match(path)
        return selected or path == f"/api/v1/nodes/{self.name}" or (pod is not None and pod[1] in self.pods)

    def get(self, path: str) -> dict[str, Any]:
        """Return the body for a GET."""
        if path == "/api/v1/pods":
            listed = [self.pod(name) for name in self.pods]
            return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": listed}
        pod = POD.match(path)
        return self.pod(pod[1]) if pod else self.node

    def pod(self, name: str) -> dict[str, Any]:
        """Return a running pod of the node."""
        kind = self.pods[name]
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": "own", "uid": "2", "controller": True}
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": name,
            "ownerReferences": [owner] * bool(kind),
        }
        spec = {"nodeName": self.name, "containers": [{"name": "c", "image": "i"}]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": spec,
            "status": {"phase": "Running"},
        }

    def change(self, verb: str, path: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Apply a request that changes the node or evicts a pod; return status and body."""
        self.requests.append(f"{verb} {path}")
        pod = POD.match(path)
        return self._evict(pod[1]) if pod else self._patch(document)

    def _patch(self, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Apply a patch to the node, also the strategic one that `kubectl cordon` sends."""
        merge(self.node, document)
        return 200, self.node

    def _evict(self, pod: str) -> tuple[int, dict[str, Any]]:
        """Delete a pod, unless the budget allows no disruption."""
        if self.refusals:
            self.refusals -= self.refusals > 0
            said = "Cannot evict pod as it would violate the pod's disruption budget."
            return 429, status("TooManyRequests", 429, said)
        del self.pods[pod]
        return 201, status("", 201, "")


def status(reason: str, code: int, message: str) -> dict[str, Any]:
    """Return an object of the kind Status."""
    result = "Success" if code < 400 else "Failure"
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": result,
        "reason": reason,
        "code": code,
        "message": message,
    }


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7386) to a document."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def resources(version: str, listed: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


GROUPS = [group("apps"), group("node.k8s.io"), group("policy")]
DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": GROUPS},
    "/api/v1": resources("v1", CORE),
    "/apis/apps/v1": resources("apps/v1", APPS),
    "/apis/node.k8s.io/v1": resources("node.k8s.io/v1", RUNTIME),
    "/apis/policy/v1": resources("policy/v1", []),
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.2"},
}


class Handler(BaseHTTPRequestHandler):
    """HTTP for the nodes of a cluster."""

    nodes: Sequence[ApiNode]

    def do_GET(self) -> None:
        """Answer with discovery, a DaemonSet, or the node and its pods; 404 for others."""
        path = urlsplit(self.path).path
        kind, _, name = path.rpartition("/")
        if fixed := DISCOVERY.get(path):
            self._answer(200, fixed)
        elif kind.endswith("/daemonsets"):
            own = {"name": name, "namespace": "default", "uid": "2"}
            self._answer(200, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": own})
        elif node := self._node():
            self._answer(200, node.get(path))
        else:
            self._answer(404, status("NotFound", 404, f"{path} not found"))

    def do_PATCH(self) -> None:
        self._change("PATCH")

    def do_POST(self) -> None:
        self._change("POST")

    def _change(self, verb: str) -> None:
        """Apply the body of the request to the node that it is about, and answer."""
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        node = self._node()
        assert node, self.path
        self._answer(*node.change(verb, urlsplit(self.path).path, document))

    def _node(self) -> ApiNode | None:
        """Return the node that the request is about."""
        split = urlsplit(self.path)
        query = parse_qs(split.query)
        return next((each for each in self.nodes if each.has(split.path, query)), None)

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        """Send a status and a JSON body."""
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path, *nodes: ApiNode) -> Iterator[dict[str, str]]:
    """Serve nodes of a cluster; yield the environment for kubectl, whose cache is in the folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"nodes": nodes}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "kubeconfig"
    address = f"http://127.0.0.1:{server.server_address[1]}"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
            }
        )
    )
    try:
        yield {"KUBECONFIG": str(config), "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
    finally:
        server.shutdown()
        server.server_close()
