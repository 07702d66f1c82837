"""A control plane for benchmarks: etcd, kube-apiserver and kube-scheduler on loopback, and kwok with fake nodes whose pods run
at once. No controller-manager: nothing else works on the objects while somebody is measured. It needs no root, and runs beside
the test cluster."""

import base64
import http.client
import json
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from api_server import ApiServer  # noqa: E402
from shell import ClusterError, wait_for  # noqa: E402

PORT = 6743
ETCD_PORT = 24190
NODES = 50
RESOURCES = ("pods", "services/specs", "secrets", "events", "ringmaster.dev/trainingjobs", "kubeflow.org/tfjobs")  # as etcd's keys name them


def _range(prefix):
    """Everything in etcd that begins with this; "0" comes after "/"."""
    first, end = (base64.b64encode(text.encode()).decode() for text in (prefix, prefix[:-1] + "0"))
    return {"key": first, "range_end": end}


class Plane(ApiServer):
    def __init__(self, state):
        super().__init__(state, PORT, ETCD_PORT)
        self.tls = ssl.create_default_context(cafile=self.pki.path("ca.crt"))
        self.tls.load_cert_chain(self.pki.path("admin.crt"), self.pki.path("admin.key"))

    def start(self):
        super().start()
        # The scheduler's own limit (50 requests a second) would be what is measured.
        config = self.state / "scheduler.yaml"
        config.write_text(json.dumps({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 10000, "burst": 10000}}))
        self.processes.start("kube-scheduler", [self.programs / "kube-scheduler", "--config", config, "--secure-port", "0"])
        self.processes.start("kwok", [self.programs / "kwok", "--kubeconfig", self.kubeconfig, "--manage-all-nodes",
                                      "--cidr", "10.128.0.0/9", "--node-ip", "127.0.0.1"])
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"fake-{i}", "annotations": {"kwok.x-k8s.io/node": "fake"}}} for i in range(NODES)]
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        self.kubectl("taint", "node", "--all", "node.kubernetes.io/not-ready-")  # there is no node controller that would
        self.install_crd(ROOT / "crd", "trainingjobs.ringmaster.dev")

    def install_crd(self, path, name):
        self.kubectl("apply", "--server-side", "-f", str(path))
        wait_for(f"the CRD {name} is established", lambda: self._is_established(name), 60)

    def _is_established(self, name):
        crd = self.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        return any(c["type"] == "Established" and c["status"] == "True" for c in crd["status"].get("conditions") or [])

    def stop(self):
        for name in ("kwok", "kube-scheduler"):
            self.processes.stop(name, 3)
        super().stop()

    # ---- what is there, without troubling the API server

    def count(self, resource, ns):
        """How many objects etcd has of what it files under this name."""
        answer = self._etcd("/v3/kv/range", {**_range(f"/registry/{resource}/{ns}/"), "count_only": True})
        return int(answer.get("count", 0))

    def wipe(self, ns):
        """Every object of the namespace, straight out of the store: nobody is asked, finalizers and grace are not waited for."""
        for resource in RESOURCES:
            self._etcd("/v3/kv/deleterange", _range(f"/registry/{resource}/{ns}/"))

    # ---- requests

    def request(self, method, path, body=None, kind="application/json"):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise ClusterError(f"{method} {path}: {answer.status} {text[:400].decode(errors='replace')}")
            return json.loads(text)
        finally:
            connection.close()

    def post(self, path, body, count, first=0, in_flight=16, method="POST", kind="application/json"):
        """Sends `body` `count` times, "@I@" in it and in the path numbered; what bench/post.c says of it."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(body, file)
            file.flush()
            pki = self.pki
            done = subprocess.run([ROOT / "build/bench/post", "--server", f"https://127.0.0.1:{self.port}", "--ca", pki.path("ca.crt"),
                                   "--cert", pki.path("admin.crt"), "--key", pki.path("admin.key"), "--method", method, "--path", path,
                                   "--body", file.name, "--type", kind, "--count", str(count), "--first", str(first),
                                   "--in-flight", str(in_flight)], capture_output=True, text=True)
        if not done.stdout:
            raise ClusterError(f"post {path}: {done.stderr}")
        said = json.loads(done.stdout)
        if said["failed"]:
            raise ClusterError(f"{said['failed']} of {count} requests to {path} failed, the first with {said['error']}")
        return said


class Running:
    """Counts, by a watch, the pods of a namespace that have begun to run, and when the last one did."""

    def __init__(self, plane, ns):
        self.plane, self.last, self.names, self.closed = plane, time.monotonic(), set(), False
        self.path = f"/api/v1/namespaces/{ns}/pods?watch=1&fieldSelector=status.phase%3DRunning"
        self.connection = None
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self):
        while not self.closed:
            try:
                self._watch()
            except (OSError, ValueError, AttributeError, http.client.HTTPException):
                time.sleep(0.1)  # the server ends a watch now and then; a new one tells of all that run

    def _watch(self):
        self.connection = http.client.HTTPSConnection("127.0.0.1", self.plane.port, context=self.plane.tls)
        self.connection.request("GET", self.path, headers={"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"})
        for line in self.connection.getresponse():
            name = re.search(rb'"metadata":{"name":"([^"]+)"', line)
            if name and line.startswith(b'{"type":"ADDED"') and name[1] not in self.names:
                self.names.add(name[1])
                self.last = time.monotonic()

    def wait(self, count, timeout_s):
        """When the last of `count` pods ran."""
        wait_for(f"{count} pods run", lambda: len(self.names) >= count, timeout_s, 0.01)
        return self.last

    def close(self):
        self.closed = True
        if self.connection is not None and self.connection.sock is not None:
            self.connection.sock.shutdown(2)
        self.thread.join(5)
