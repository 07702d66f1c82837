"""One Kubernetes node on this machine: its own network, mount, PID and IPC namespaces, containerd, kube-proxy and kubelet.

Killing the process that holds the PID namespace is the loss of a node: everything in it ends at once.
"""

import json
import os
import pathlib
import shutil
import subprocess
import textwrap

from control_plane import DNS_IP, SERVER
from pki import Pki
from shell import Processes, ok, run, wait_for

BRIDGE = "rmbr0"
HOST_IP = "172.30.0.1"

# What the machines of this cluster have installed for training: the checkout's Python environment with TensorFlow, read-only in
# every container. A layer of 2 GB in each node's own image store would take minutes, and memory for three copies of its libraries.
ENVIRONMENT = pathlib.Path(__file__).resolve().parent.parent.parent / "build" / "venv"
ENVIRONMENT_AT = "/opt/training"


def bridge_up() -> None:
    if not ok(["ip", "link", "show", BRIDGE]):
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "address", "add", f"{HOST_IP}/24", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])


def bridge_down() -> None:
    if ok(["ip", "link", "show", BRIDGE]):
        run(["ip", "link", "delete", BRIDGE])


def _write_when_new(path: pathlib.Path, text: str) -> None:
    """kube-proxy ends when its file is written to, and `up` on a running cluster writes what is there already."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


class Node:
    def __init__(self, index: int, state: pathlib.Path, programs: pathlib.Path, pki: Pki, processes: Processes, nodes: int) -> None:
        self.index, self.programs, self.pki, self.processes, self.nodes = index, programs, pki, processes, nodes
        self.name = f"node-{index}"
        self.directory = state / self.name
        self.namespace = f"rm-{self.name}"
        self.ip = f"172.30.0.{10 + index}"
        self.pod_cidr = f"10.244.{index}.0/24"

    # -- network ---------------------------------------------------------------------------------------------------

    def _network_up(self) -> None:
        if not ok(["ip", "netns", "exec", self.namespace, "true"]):
            run(["ip", "netns", "add", self.namespace])
        inside = ["ip", "-n", self.namespace]
        if not ok([*inside, "link", "show", "eth0"]):
            host_end = f"rmv{self.index}"
            run(["ip", "link", "add", host_end, "type", "veth", "peer", "name", "eth0", "netns", self.namespace])
            run(["ip", "link", "set", host_end, "master", BRIDGE, "up"])
            run([*inside, "address", "add", f"{self.ip}/24", "dev", "eth0"])
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "route", "replace", "default", "via", HOST_IP])
        for other in range(1, self.nodes + 1):
            if other != self.index:
                run([*inside, "route", "replace", f"10.244.{other}.0/24", "via", f"172.30.0.{10 + other}"])
        run(["ip", "route", "replace", self.pod_cidr, "via", self.ip])
        run(["ip", "netns", "exec", self.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"])

    # -- files -----------------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for name in ("containerd", "containerd-state", "kubelet", "cni", "log"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.pki.kubeconfig(f"kubelet-{self.name}", SERVER, f"system:node:{self.name}", "system:nodes")
        (self.directory / "cni" / "10-bridge.conflist").write_text(textwrap.dedent(f"""\
            {{"cniVersion": "0.4.0", "name": "pods", "plugins": [
              {{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
               "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{self.pod_cidr}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
              {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
            """))
        (self.directory / "containerd.toml").write_text(textwrap.dedent(f"""\
            version = 2
            root = "{self.directory}/containerd"
            state = "{self.directory}/containerd-state"
            [grpc]
              address = "/run/containerd/containerd.sock"
            [plugins."io.containerd.grpc.v1.cri"]
              # Without CAP_SYS_RESOURCE an oom_score_adj cannot be lowered and the pause container would not start.
              restrict_oom_score_adj = true
              sandbox_image = "localhost/ringmaster/pause:1"
              [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
                runtime_type = "io.containerd.runc.v2"
                base_runtime_spec = "{self.directory}/base-spec.json"
              [plugins."io.containerd.grpc.v1.cri".cni]
                bin_dir = "/usr/lib/cni"
                conf_dir = "{self.directory}/cni"
            """))
        self._write_base_spec()
        (self.directory / "kubelet.yaml").write_text(textwrap.dedent(f"""\
            apiVersion: kubelet.config.k8s.io/v1beta1
            kind: KubeletConfiguration
            authentication:
              anonymous: {{enabled: false}}
              x509: {{clientCAFile: "{self.pki.path('ca.crt')}"}}
            authorization: {{mode: AlwaysAllow}}
            cgroupDriver: cgroupfs
            cgroupRoot: /{self.name}
            clusterDNS: ["{DNS_IP}"]
            clusterDomain: cluster.local
            containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
            enforceNodeAllocatable: []
            evictionHard: {{memory.available: 50Mi, nodefs.available: "1%", imagefs.available: "1%"}}
            failCgroupV1: false
            failSwapOn: false
            imageGCHighThresholdPercent: 100
            nodeStatusUpdateFrequency: 2s
            podCIDR: "{self.pod_cidr}"
            resolvConf: "{self.directory}/resolv.conf"
            serializeImagePulls: false
            syncFrequency: 10s
            """))
        (self.directory / "resolv.conf").write_text("")
        _write_when_new(self.directory / "kube-proxy.yaml", textwrap.dedent(f"""\
            apiVersion: kubeproxy.config.k8s.io/v1alpha1
            kind: KubeProxyConfiguration
            mode: iptables
            clusterCIDR: 10.244.0.0/16
            hostnameOverride: {self.name}
            clientConnection: {{kubeconfig: "{self.pki.path('kube-proxy.kubeconfig')}"}}
            conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
            """))
        script = self.directory / "boot.sh"
        script.write_text(textwrap.dedent(f"""\
            #!/bin/sh
            # First process of the node's namespaces: own mounts, then the three daemons. Ends when any of them ends.
            set -eu
            mount --make-rprivate /
            mount -t tmpfs tmpfs /run
            mkdir -p /run/containerd /var/log/pods
            mount --bind {self.directory}/log /var/log
            ip link show cni0 >/dev/null 2>&1 || true
            hostname {self.name}
            containerd --config {self.directory}/containerd.toml >>{self.directory}/containerd.log 2>&1 &
            until ctr --address /run/containerd/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
            for image in {self.directory}/images/*.tar; do
                [ -e "$image" ] && ctr --address /run/containerd/containerd.sock -n k8s.io images import "$image" >>{self.directory}/containerd.log 2>&1
            done
            {self.programs}/kube-proxy --config {self.directory}/kube-proxy.yaml >>{self.directory}/kube-proxy.log 2>&1 &
            exec {self.programs}/kubelet --config {self.directory}/kubelet.yaml --root-dir {self.directory}/kubelet \\
                --kubeconfig {self.pki.path('kubelet-' + self.name + '.kubeconfig')} --hostname-override {self.name} \\
                --node-ip {self.ip} --node-labels topology.kubernetes.io/zone=zone-{self.index} >>{self.directory}/kubelet.log 2>&1
            """))
        script.chmod(0o755)

    def _write_base_spec(self) -> None:
        """What containerd makes of every container, beside what its pod says."""
        spec = json.loads(run(["ctr", "oci", "spec"], quiet=True))
        if ENVIRONMENT.exists():
            spec["mounts"].append({"destination": ENVIRONMENT_AT, "type": "bind", "source": str(ENVIRONMENT.resolve()),
                                   "options": ["rbind", "ro", "nosuid", "nodev"]})
        (self.directory / "base-spec.json").write_text(json.dumps(spec))

    def _cgroups_up(self) -> None:
        root = pathlib.Path("/sys/fs/cgroup")
        if (root / "cgroup.controllers").exists():
            (root / self.name).mkdir(exist_ok=True)
            return
        for controller in root.iterdir():
            if not controller.is_dir() or controller.is_symlink():
                continue
            group = controller / self.name
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (group / setting).exists():
                    (group / setting).write_text((controller / setting).read_text())

    # -- life ------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        self._network_up()
        self._write_files()
        self._cgroups_up()
        self.processes.start(self.name, [
            "nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "-m", "-p", "-u", "-i", "-f", "--kill-child",
            "--mount-proc", self.directory / "boot.sh"])

    def add_image(self, archive: pathlib.Path) -> None:
        """Makes a docker-archive known to the node: imported now when it runs, and at every later boot."""
        images = self.directory / "images"
        images.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, images / archive.name)
        pid = self.processes.pid(self.name)
        if pid is not None:
            wait_for(f"containerd of {self.name} answers", lambda: ok(self.inside("ctr", "--address", "/run/containerd/containerd.sock", "version")), 60)
            run(self.inside("ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import", str(images / archive.name)), quiet=True)

    def inside(self, *command: str) -> list:
        """The command as a process of the node's namespaces."""
        child = subprocess.run(["pgrep", "-P", str(self.processes.pid(self.name) or 0)], stdout=subprocess.PIPE, text=True).stdout.split()
        first = child[0] if child else "0"
        return ["nsenter", "-t", first, "-m", "-p", "-n", *command]

    def kill(self) -> None:
        """Node loss: nothing is told, nothing is cleaned."""
        self.processes.stop(self.name, grace_s=0)

    def down(self) -> None:
        self.kill()
        if ok(["ip", "netns", "exec", self.namespace, "true"]):
            run(["ip", "netns", "delete", self.namespace])
        subprocess.run(["ip", "route", "delete", self.pod_cidr], stderr=subprocess.DEVNULL)
        self._unmount()
        self._cgroups_down()

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self.directory) + os.sep)), reverse=True):
            subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL)

    def _cgroups_down(self) -> None:
        for group in pathlib.Path("/sys/fs/cgroup").glob(f"**/{self.name}"):
            for path, _, _ in os.walk(group, topdown=False):
                try:
                    os.rmdir(path)
                except OSError:
                    pass  # a process of the node is still going away; an empty group costs nothing
