"""A kubelet for nodes that run nothing: a thread that binds pods, starts and ends "processes" by the script in the pod's annotations, and
confirms deletions as far as its nodes are up."""

import collections
import json
import queue
import threading
import time
from typing import Dict, List, Optional, Tuple

LABEL = "ringmaster.dev/"
SCRIPT = "test.ringmaster.dev/script"
SIZE = "test.ringmaster.dev/size"
MERGE = "application/merge-patch+json"


def now_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Node:
    def __init__(self, name: str) -> None:
        self.name, self.up = name, True


class Pod:
    def __init__(self, thing: dict) -> None:
        metadata, labels = thing["metadata"], thing["metadata"].get("labels", {})
        annotations = metadata.get("annotations", {})
        self.uid, self.ns, self.name = metadata["uid"], metadata["namespace"], metadata["name"]
        self.job, self.job_uid = labels.get(LABEL + "job-name", ""), labels.get(LABEL + "job-uid", "")
        self.member = f"{labels.get(LABEL + 'replica-type')}-{labels.get(LABEL + 'replica-index')}"
        self.attempt = labels.get(LABEL + "attempt", "")
        self.script = json.loads(annotations.get(SCRIPT, "{}"))
        self.size = int(annotations.get(SIZE, "0"))
        self.main = annotations.get(LABEL + "main-container")
        self.spec = thing["spec"]
        self.node: Optional[Node] = None
        self.live = self.ended = self.deleting = self.gone = False

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.ns}/pods/{self.name}"


class Kubelet:
    """All nodes in one. Pods of one namespace are worked on by one thread, in order."""

    THREADS = 3

    def __init__(self, api) -> None:
        self.api, self.lock = api, threading.RLock()
        self.nodes: Dict[str, Node] = {}
        self.pods: Dict[str, Pod] = {}
        self.live: Dict[Tuple[str, str, str], Pod] = {}
        self.running: Dict[Tuple[str, str], List[Pod]] = collections.defaultdict(list)
        self.violations: List[str] = []
        self.queues = [queue.Queue() for _ in range(self.THREADS)]
        self.threads = [threading.Thread(target=self._work, args=(q,), daemon=True, name="kubelet") for q in self.queues]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        for q in self.queues:
            q.put(None)
        for thread in self.threads:
            thread.join(10)

    # ---- nodes

    def add_node(self, name: str) -> None:
        """Pods go to nodes whose name begins with their namespace."""
        self.nodes[name] = Node(name)
        if self.api.get(f"/api/v1/nodes/{name}") is None:
            self.api.request("POST", "/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
        self._tell_node(name, "True")

    def _tell_node(self, name: str, ready: str) -> None:
        condition = {"type": "Ready", "status": ready, "reason": "Test", "lastHeartbeatTime": now_text(), "lastTransitionTime": now_text()}
        self.api.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, MERGE)

    def lose(self, name: str) -> None:
        """As when the power fails; the cluster has noticed."""
        with self.lock:
            self.nodes[name].up = False
            for key, pod in list(self.live.items()):
                if pod.node is self.nodes[name]:
                    pod.live = False
                    del self.live[key]
        self._tell_node(name, "Unknown")

    def bring_back(self, name: str) -> None:
        with self.lock:
            self.nodes[name].up = True
            left = [p for p in self.pods.values() if p.node is self.nodes[name] and p.deleting and not p.gone]
        self._tell_node(name, "True")
        for pod in left:
            self._later(pod.ns, self._confirm, pod)

    # ---- what a test may do

    def members(self, ns: str, job: str) -> Dict[str, Pod]:
        with self.lock:
            return {member: pod for (n, j, member), pod in self.live.items() if (n, j) == (ns, job)}

    def end(self, ns: str, job: str, member: str, code: int) -> None:
        """The process ends."""
        self._later(ns, self._end, self.members(ns, job)[member], code)

    # ---- work

    def _later(self, ns: str, function, *arguments) -> None:
        self.queues[hash(ns) % self.THREADS].put((function, arguments))

    def _work(self, q: queue.Queue) -> None:
        while (item := q.get()) is not None:
            try:
                item[0](*item[1])
            except Exception as error:  # noqa: BLE001
                self.violations.append(f"the kubelet itself: {error!r}")

    def tell(self, kind: str, thing: dict) -> None:
        self._later(thing["metadata"]["namespace"], self._on_pod, kind, thing)

    def _on_pod(self, kind: str, thing: dict) -> None:
        uid = thing["metadata"]["uid"]
        pod = self.pods.get(uid)
        if pod is None:
            if kind == "DELETED":
                return
            pod = self.pods[uid] = Pod(thing)
        if kind == "DELETED":
            pod.gone = True
            if pod.live and pod.node.up:
                self.violations.append(f"{pod.ns}/{pod.name} {uid} was deleted by force from {pod.node.name}, which is well, while its process ran")
            self._stop(pod)
            self.pods.pop(uid, None)
        elif "deletionTimestamp" in thing["metadata"]:
            if not pod.deleting:
                pod.deleting = True
                self._confirm(pod)
        elif "nodeName" not in thing["spec"]:
            self._bind(pod)
        elif pod.node is None:
            pod.node = self.nodes.get(thing["spec"]["nodeName"]) or Node(thing["spec"]["nodeName"])
            self._start(pod)

    def _bind(self, pod: Pod) -> None:
        mine = [n for n in sorted(self.nodes) if n.startswith(pod.ns) and self.nodes[n].up]
        if not mine:
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": mine[int(pod.member.rsplit("-", 1)[1]) % len(mine)]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name, "uid": pod.uid}, "target": target}
        self.api.quietly("POST", pod.path + "/binding", binding)

    def _containers(self, pod: Pod, state: dict, ready: bool) -> List[dict]:
        return [{"name": c["name"], "image": c.get("image", ""), "imageID": "", "ready": ready, "restartCount": 0, "state": state}
                for c in pod.spec["containers"]]

    def _write(self, pod: Pod, phase: str, state: dict) -> bool:
        ready = phase == "Running"
        conditions = [{"type": kind, "status": "True" if ready or kind == "PodScheduled" else "False", "lastTransitionTime": now_text()}
                      for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
        body = {"metadata": {"uid": pod.uid}, "status": {"phase": phase, "conditions": conditions, "containerStatuses": self._containers(pod, state, ready)}}
        return self.api.quietly("PATCH", pod.path + "/status", body, MERGE)

    def _start(self, pod: Pod) -> None:
        with self.lock:
            if pod.deleting or pod.gone or not pod.node.up:
                return
            other = self.live.get((pod.ns, pod.job, pod.member))
            if other is not None:
                self.violations.append(f"{pod.ns}/{pod.name}: {pod.uid} starts while {other.uid} lives")
            self.live[(pod.ns, pod.job, pod.member)] = pod
            pod.live = True
        if not self._write(pod, "Running", {"running": {"startedAt": now_text()}}):
            return
        group = self.running[(pod.job_uid, pod.attempt)]
        group.append(pod)
        if len(group) >= pod.size > 0:
            self._play(group)

    def _play(self, group: List[Pod]) -> None:
        """What is to become of the processes of an attempt, once all of them run."""
        for pod in group:
            part = pod.script.get(pod.attempt, pod.script.get("*", {}))
            code = part.get(pod.member, part.get("*"))
            if code is not None and not pod.ended:
                pod.ended = True
                self._later(pod.ns, self._end, pod, code)

    def _end(self, pod: Pod, code: int) -> None:
        if not pod.live:
            return
        self._stop(pod)
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": now_text(), "finishedAt": now_text(),
                 "message": f"the process of {pod.member} ended with {code}"}
        self._write(pod, "Succeeded" if code == 0 else "Failed", {"terminated": ended})

    def _stop(self, pod: Pod) -> None:
        with self.lock:
            pod.live = False
            if self.live.get((pod.ns, pod.job, pod.member)) is pod:
                del self.live[(pod.ns, pod.job, pod.member)]

    def _confirm(self, pod: Pod) -> None:
        """The process is stopped, and then the pod is gone: as a kubelet does, and never on a node that is lost."""
        if pod.node is not None and not pod.node.up:
            return
        self._stop(pod)
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        self.api.quietly("DELETE", pod.path, options)
