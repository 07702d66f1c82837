"""An API server with its etcd on loopback, without nodes or controllers: what tests of the client need, killed and restarted as
they like. Runs beside a whole cluster (cluster.py), and without root."""

import json
import os
import pathlib
import shutil
import signal
import urllib.request

import binaries
from pki import Pki
from shell import ClusterError, Processes, ok, run, wait_for

PORT = 6543
ETCD_PORT = 23990


class ApiServer:
    def __init__(self, state: pathlib.Path, port: int = PORT, etcd_port: int = ETCD_PORT) -> None:
        self.state, self.port, self.etcd_port = state, port, etcd_port
        self.programs = binaries.ensure()
        self.pki = Pki(state)
        self.processes = Processes(state)
        names = ["DNS:localhost", "DNS:kubernetes.test", "IP:127.0.0.1"]
        self.pki.certificate("apiserver", "kube-apiserver", "", names)
        self.kubeconfig = self.pki.kubeconfig("admin", f"https://127.0.0.1:{port}", "admin", "system:masters")

    def start_etcd(self) -> None:
        url = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{self.etcd_port + 1}"
        self.processes.start("etcd", [
            self.programs / "etcd", "--data-dir", self.state / "etcd", "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--listen-metrics-urls", ""])

    def start(self) -> None:
        self.start_etcd()
        self.processes.start("kube-apiserver", [
            self.programs / "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self.etcd_port}", "--bind-address", "127.0.0.1",
            "--secure-port", str(self.port), "--service-cluster-ip-range", "10.97.0.0/16", "--authorization-mode", "RBAC",
            "--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none",
            "--client-ca-file", self.pki.path("ca.crt"), "--tls-cert-file", self.pki.path("apiserver.crt"),
            "--tls-private-key-file", self.pki.path("apiserver.key"), "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", self.pki.path("sa.pub"), "--service-account-signing-key-file", self.pki.path("sa.key")])
        ready = [self.programs / "kubectl", "--kubeconfig", self.kubeconfig, "get", "--raw", "/readyz"]
        try:
            wait_for("the API server is ready", lambda: ok(ready), 180)
        except ClusterError as error:
            raise ClusterError(f"{error}; its log ends:\n{self.processes.tail('kube-apiserver')}") from error

    def start_controllers(self, *names: str) -> None:
        """Those of the controller manager that a test needs, for example garbage-collector-controller."""
        self.processes.start("kube-controller-manager", [
            self.programs / "kube-controller-manager", "--kubeconfig", self.kubeconfig, "--controllers", ",".join(names), "--leader-elect=false",
            "--secure-port", "0"])

    def kill(self) -> None:
        """As the kernel does when memory is out."""
        pid = self.processes.pid("kube-apiserver")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for("the API server is gone", lambda: self.processes.pid("kube-apiserver") is None, 10, 0.05)

    def freeze(self, frozen: bool) -> None:
        os.kill(self.processes.pid("kube-apiserver"), signal.SIGSTOP if frozen else signal.SIGCONT)

    def _etcd(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(f"http://127.0.0.1:{self.etcd_port}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def compact(self) -> None:
        """etcd forgets every version but the newest: a watch from an older one is told 410 Gone."""
        revision = self._etcd("/v3/kv/range", {"key": "AA==", "limit": "1"})["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return run([self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin, quiet=True)

    def stop(self) -> None:
        if self.processes.pid("kube-apiserver") is not None:
            self.freeze(False)
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            self.processes.stop(name, 3)
        shutil.rmtree(self.state, ignore_errors=True)
