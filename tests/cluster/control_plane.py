"""etcd, kube-apiserver, controller-manager, scheduler and CoreDNS as processes of the host, on an address of the cluster's
own bridge, so that the nodes' namespaces reach them and nothing outside does."""

import json
import pathlib
import textwrap

from pki import SERVICE_IP, Pki
from shell import ClusterError, Processes, ok, run, wait_for

HOST_IP = "172.30.0.1"
SERVER = f"https://{HOST_IP}:6443"
DNS_IP = "10.96.0.10"
DNS_PORT = 5300

# Node loss has to be visible in seconds, not minutes, for tests.
NODE_GRACE_S = 10
UNREACHABLE_TOLERATION_S = 5


class ControlPlane:
    def __init__(self, state: pathlib.Path, programs: pathlib.Path, pki: Pki, processes: Processes) -> None:
        self.state, self.programs, self.pki, self.processes = state, programs, pki, processes

    @property
    def kubeconfig(self) -> pathlib.Path:
        return self.pki.path("admin.kubeconfig")

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return run([self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin, quiet=True)

    def up(self) -> None:
        pki = self.pki
        pki.certificate("apiserver", "kube-apiserver", "", [
            f"IP:{HOST_IP}", f"IP:{SERVICE_IP}", "IP:127.0.0.1", "DNS:kubernetes", "DNS:kubernetes.default",
            "DNS:kubernetes.default.svc", "DNS:kubernetes.default.svc.cluster.local", "DNS:localhost"])
        pki.certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        pki.kubeconfig("admin", SERVER, "admin", "system:masters")
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            pki.kubeconfig(name, SERVER, f"system:{name}")

        self.processes.start("etcd", [
            self.programs / "etcd", "--data-dir", self.state / "etcd", "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", "http://127.0.0.1:23790", "--advertise-client-urls", "http://127.0.0.1:23790",
            "--listen-peer-urls", "http://127.0.0.1:23800", "--initial-advertise-peer-urls", "http://127.0.0.1:23800",
            "--initial-cluster", "default=http://127.0.0.1:23800", "--listen-metrics-urls", ""])
        self.processes.start("kube-apiserver", [
            self.programs / "kube-apiserver", "--etcd-servers", "http://127.0.0.1:23790", "--bind-address", HOST_IP,
            "--advertise-address", HOST_IP, "--secure-port", "6443", "--service-cluster-ip-range", "10.96.0.0/16",
            "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
            "--client-ca-file", pki.path("ca.crt"), "--tls-cert-file", pki.path("apiserver.crt"),
            "--tls-private-key-file", pki.path("apiserver.key"), "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", pki.path("sa.pub"), "--service-account-signing-key-file", pki.path("sa.key"),
            "--kubelet-client-certificate", pki.path("apiserver-kubelet-client.crt"),
            "--kubelet-client-key", pki.path("apiserver-kubelet-client.key"),
            "--kubelet-preferred-address-types", "InternalIP",
            f"--default-unreachable-toleration-seconds={UNREACHABLE_TOLERATION_S}",
            f"--default-not-ready-toleration-seconds={UNREACHABLE_TOLERATION_S}"])
        kubectl = [self.programs / "kubectl", "--kubeconfig", self.kubeconfig]
        try:
            wait_for("the API server is ready", lambda: ok([*kubectl, "get", "--raw", "/readyz"]), 60)
        except ClusterError as error:
            raise ClusterError(f"{error}; its log ends:\n{self.processes.tail('kube-apiserver')}") from error

        self.processes.start("kube-controller-manager", [
            self.programs / "kube-controller-manager", "--kubeconfig", pki.path("kube-controller-manager.kubeconfig"),
            "--bind-address", "127.0.0.1", "--leader-elect=false", "--use-service-account-credentials",
            "--service-account-private-key-file", pki.path("sa.key"), "--root-ca-file", pki.path("ca.crt"),
            f"--node-monitor-grace-period={NODE_GRACE_S}s", "--node-monitor-period=2s"])
        self.processes.start("kube-scheduler", [
            self.programs / "kube-scheduler", "--kubeconfig", pki.path("kube-scheduler.kubeconfig"),
            "--bind-address", "127.0.0.1", "--leader-elect=false"])
        self._dns_up()

    def _dns_up(self) -> None:
        """CoreDNS runs on the host; pods reach it through a Service without a selector and a hand-made EndpointSlice."""
        corefile = self.state / "Corefile"
        corefile.write_text(textwrap.dedent(f"""\
            .:{DNS_PORT} {{
                bind {HOST_IP}
                kubernetes cluster.local in-addr.arpa ip6.arpa {{
                    kubeconfig {self.kubeconfig}
                    pods insecure
                    ttl 1
                }}
                errors
            }}
            """))
        self.processes.start("coredns", [self.programs / "coredns", "-conf", corefile])
        ports = [{"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 53}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                   "spec": {"clusterIP": DNS_IP, "ports": [{**p, "targetPort": DNS_PORT} for p in ports]}}
        slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                  "metadata": {"name": "kube-dns-host", "namespace": "kube-system", "labels": {"kubernetes.io/service-name": "kube-dns"}},
                  "ports": [{**p, "port": DNS_PORT} for p in ports], "endpoints": [{"addresses": [HOST_IP]}]}
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, slice_]}))
