#!/usr/bin/env python3
"""A real Kubernetes on one machine: API server, etcd, controllers, scheduler, DNS, and nodes with kubelet and containerd.

    cluster.py up [--nodes N]   start it, or complete what is missing; prints how to reach it
    cluster.py env              `export` lines for a shell: KUBECONFIG and PATH with kubectl and helm
    cluster.py kill-node N      lose node N without a word (the namespaces' first process is killed)
    cluster.py start-node N     bring it back
    cluster.py load ARCHIVE     make a docker-archive image known to every node
    cluster.py binaries         build the programs into the cache and do nothing else
    cluster.py operator         install the operator of this checkout with Helm, or bring it up to date
    cluster.py down             stop everything and remove what it left in the kernel

Needs root. State is under build/cluster (or CLUSTER_STATE); programs are built once into the cache (see binaries.py).
Everything that `up` starts is remembered in files, so that `down` cleans up even after a crash.
"""

import argparse
import os
import pathlib
import shutil
import sys

import binaries
from control_plane import SERVER, ControlPlane
from node import Node, bridge_down, bridge_up
from pki import Pki
from shell import ClusterError, Processes, run, say, wait_for

HERE = pathlib.Path(__file__).resolve().parent
PAUSE_IMAGE = "localhost/ringmaster/pause:1"
CONTROL_PLANE = ("kube-scheduler", "kube-controller-manager", "coredns", "kube-apiserver", "etcd")


class Cluster:
    def __init__(self, state: pathlib.Path, nodes: int) -> None:
        self.state = state
        state.mkdir(parents=True, exist_ok=True)
        count = state / "nodes"
        if nodes:
            count.write_text(str(nodes))
        self.size = int(count.read_text()) if count.exists() else 3
        self.programs = binaries.ensure()
        self.pki = Pki(state)
        self.processes = Processes(state)
        self.control = ControlPlane(state, self.programs, self.pki, self.processes)

    def node(self, index: int) -> Node:
        if not 1 <= index <= self.size:
            raise ClusterError(f"there is no node {index}: the cluster has nodes 1 to {self.size}")
        return Node(index, self.state, self.programs, self.pki, self.processes, self.size)

    def nodes(self) -> list:
        return [self.node(i) for i in range(1, self.size + 1)]

    def _pause_archive(self) -> pathlib.Path:
        archive = self.state / "pause.tar"
        if archive.exists():
            return archive
        root = self.state / "pause"
        root.mkdir(exist_ok=True)
        run(["gcc", "-static", "-Os", "-o", root / "pause", HERE / "pause.c"])
        storage = ["--root", self.state / "buildah", "--runroot", self.state / "buildah-run", "--storage-driver", "vfs"]
        container = run(["buildah", *storage, "from", "scratch"], quiet=True).strip()
        run(["buildah", *storage, "copy", container, root / "pause", "/pause"], quiet=True)
        run(["buildah", *storage, "config", "--entrypoint", '["/pause"]', container], quiet=True)
        run(["buildah", *storage, "commit", container, f"docker-archive:{archive}.new:{PAUSE_IMAGE}"], quiet=True)
        run(["buildah", *storage, "rm", container], quiet=True)
        pathlib.Path(f"{archive}.new").rename(archive)
        return archive

    def is_up(self) -> bool:
        return self.processes.pid("kube-apiserver") is not None

    def up(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("nodes need namespaces and cgroups of their own: run as root")
        for program in ("containerd", "runc", "buildah", "ip", "iptables", "openssl", "nsenter", "unshare"):
            if shutil.which(program) is None:
                raise ClusterError(f"{program} is not installed; `make deps-cluster` installs what the cluster needs")
        archive = self._pause_archive()
        bridge_up()
        self.control.up()
        for node in self.nodes():
            images = node.directory / "images"
            images.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(archive, images / archive.name)
            node.up()
        self.wait_ready()
        say(f"cluster is up: {self.size} nodes Ready at {SERVER}; eval \"$(make -s cluster-env)\" points kubectl at it")

    def wait_ready(self) -> None:
        names = [n.name for n in self.nodes()]

        def ready() -> bool:
            text = self.control.kubectl("get", "nodes", "-o",
                                        'jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}')
            return all(f"{name}=True" in text.splitlines() for name in names)

        try:
            wait_for(f"nodes {', '.join(names)} are Ready", ready, 90, 0.5)
        except ClusterError as error:
            logs = "\n".join(f"--- {n.name}\n" + _tail(n.directory / "kubelet.log") for n in self.nodes())
            raise ClusterError(f"{error}; the kubelets' logs end:\n{logs}") from error

    def down(self) -> None:
        for node in self.nodes():
            node.down()
        for name in CONTROL_PLANE:
            self.processes.stop(name)
        bridge_down()
        shutil.rmtree(self.state, ignore_errors=True)

    def environment(self) -> str:
        return f"export KUBECONFIG={self.control.kubeconfig}\nexport PATH={self.programs}:$PATH"


def _tail(path: pathlib.Path, lines: int = 12) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up").add_argument("--nodes", type=int, default=0, help="how many nodes (default: 3, or as many as there are)")
    verbs.add_parser("down")
    verbs.add_parser("env")
    for verb in ("kill-node", "start-node"):
        verbs.add_parser(verb).add_argument("index", type=int)
    for verb in ("operator", "binaries"):
        verbs.add_parser(verb)
    verbs.add_parser("load").add_argument("archive", type=pathlib.Path)
    arguments = parser.parse_args()
    state = pathlib.Path(os.environ.get("CLUSTER_STATE", HERE.parent.parent / "build" / "cluster")).resolve()
    try:
        if arguments.verb == "binaries":
            binaries.ensure()
            return 0
        cluster = Cluster(state, getattr(arguments, "nodes", 0))
        if arguments.verb == "up":
            cluster.up()
        elif arguments.verb == "down":
            cluster.down()
        elif arguments.verb == "env":
            print(cluster.environment())
        elif arguments.verb == "kill-node":
            cluster.node(arguments.index).kill()
        elif arguments.verb == "start-node":
            cluster.node(arguments.index).up()
            cluster.wait_ready()
        elif arguments.verb == "load":
            for node in cluster.nodes():
                node.add_image(arguments.archive)
        elif arguments.verb == "operator":
            from installation import NAMESPACE, Installation  # it builds on this file

            Installation(cluster).add()
            say(f"the operator runs in namespace {NAMESPACE}; jobs: kubectl apply -f examples/digits/trainingjob.yaml")
    except ClusterError as error:
        say(f"cluster: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
