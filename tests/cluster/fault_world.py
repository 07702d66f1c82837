"""A cluster for tests of faults: a real API server with garbage collector, nodes that run nothing, and a record of all that happened.

The kubelet here is a thread: it binds pods, starts and ends "processes" by the script in the pod's annotations and confirms deletions,
as far as its nodes are up. It knows which processes live, so that two of one (role, index) at a time, or a pod that was
deleted by force from a node that is well, are seen; the record knows what followed what, by resourceVersion.
"""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import queue
import signal
import socket
import ssl
import subprocess
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

from api_server import ApiServer
from fault_proxy import HttpProxy, Proxies

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VARIANT = os.environ.get("VARIANT", "release")
BUILD = pathlib.Path(os.environ.get("RINGMASTER_BUILD") or ROOT / "build" / ("" if VARIANT == "release" else VARIANT))
OPERATOR = BUILD / "bin" / "ringmaster-operator"
VALGRIND = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"]

JOBS = "/apis/ringmaster.dev/v1alpha1"
FINAL = ("Succeeded", "Failed")
LABEL = "ringmaster.dev/"
SCRIPT = "test.ringmaster.dev/script"
SIZE = "test.ringmaster.dev/size"
MERGE = "application/merge-patch+json"


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text[:2000]}")
        self.code = code


def now_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Api:
    """Requests to the API server as its administrator, a connection a thread."""

    def __init__(self, port: int, user: ssl.SSLContext) -> None:
        self.port, self.user, self.local = port, user, threading.local()

    def request(self, method: str, path: str, body=None, kind: str = "application/json"):
        for wait_s in (0.1, 0.2, 0.5, 1, 2, 0):
            status, text = self._once(method, path, json.dumps(body).encode() if body is not None else None, kind)
            if status != 429 or wait_s == 0:
                break
            time.sleep(wait_s)
        if status >= 300:
            raise Refused(status, text.decode(errors="replace"))
        return json.loads(text) if text else None

    def _once(self, method: str, path: str, data: Optional[bytes], kind: str) -> Tuple[int, bytes]:
        for last in (False, True):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = self.local.connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.user, timeout=30)
                connection.connect()
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                connection.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                connection.close()
                self.local.connection = None
                if last:
                    raise
        raise AssertionError("not reached")

    def get(self, path: str):
        """None when it is not there."""
        try:
            return self.request("GET", path)
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def quietly(self, method: str, path: str, body=None, kind: str = "application/json") -> bool:
        """False when the object is gone or another has its name."""
        try:
            self.request(method, path, body, kind)
            return True
        except Refused as refused:
            if refused.code in (404, 409, 422):
                return False
            raise

    def items(self, path: str) -> List[dict]:
        return self.request("GET", path)["items"]

    def watch(self, path: str, version: str, seconds: int):
        """The events of one watch, until the API server ends it."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.user, timeout=seconds + 30)
        with contextlib.closing(connection):
            connection.request("GET", f"{path}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}")
            answer = connection.getresponse()
            if answer.status in (429, 500, 503):
                raise OSError(f"not now: {answer.read()[:200]!r}")
            while line := answer.readline():
                yield json.loads(line)


class Watcher:
    """Tells every change of a kind of objects, once and in order, on a thread of its own."""

    def __init__(self, api: Api, path: str, tell: Callable[[str, dict], None]) -> None:
        self.api, self.path, self.tell, self.ending, self.error = api, path, tell, False, None
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"watch {path}")
        listed = api.request("GET", path)
        self.version = listed["metadata"]["resourceVersion"]
        for item in listed["items"]:
            tell("ADDED", item)
        self.thread.start()

    def _list_anew(self) -> None:
        """What happened since the last event is not known one by one: what is there now is told as changed."""
        listed = self.api.request("GET", self.path)
        for item in listed["items"]:
            self.tell("MODIFIED", item)
        self.version = listed["metadata"]["resourceVersion"]

    def _run(self) -> None:
        while not self.ending:
            try:
                for event in self.api.watch(self.path, self.version, 300):
                    if event.get("type") == "ERROR" or event.get("kind") == "Status":
                        if (event.get("object") or event).get("code") != 410:
                            raise RuntimeError(f"watch {self.path}: {event}")
                        self._list_anew()
                        break
                    self.version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self.tell(event["type"], event["object"])
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.1)
            except Exception as error:  # noqa: BLE001
                self.error = error
                return


# ---- kubelet -----------------------------------------------------------------------------------------------------------------


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

    def __init__(self, api: Api) -> None:
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
        self.api.quietly("POST", pod.path + "/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name, "uid": pod.uid}, "target": target})

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


# ---- the record ----------------------------------------------------------------------------------------------------------------


class Life:
    """All that was seen of one job."""

    def __init__(self, uid: str) -> None:
        self.uid, self.states, self.pods, self.gone, self.invalid = uid, [], [], False, False

    @property
    def status(self) -> dict:
        return self.states[-1][1] if self.states else {}

    def final(self) -> Optional[Tuple[int, dict]]:
        return next(((v, s) for v, s in self.states if s.get("phase") in FINAL), None)


class Record:
    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.lives: Dict[Tuple[str, str], Life] = {}
        self.by_uid: Dict[str, Life] = {}

    def _life(self, ns: str, name: str, uid: str) -> Life:
        life = self.by_uid.get(uid)
        if life is None:
            life = self.by_uid[uid] = self.lives[(ns, name)] = Life(uid)
        return life

    def job(self, kind: str, thing: dict) -> None:
        metadata = thing["metadata"]
        with self.lock:
            life = self._life(metadata["namespace"], metadata["name"], metadata["uid"])
            if kind == "DELETED":
                life.gone = True
            else:
                life.states.append((int(metadata["resourceVersion"]), thing.get("status", {})))
            self.lock.notify_all()

    def pod(self, kind: str, thing: dict) -> None:
        metadata, labels = thing["metadata"], thing["metadata"].get("labels", {})
        if kind != "ADDED" or LABEL + "job-uid" not in labels:
            return
        with self.lock:
            life = self._life(metadata["namespace"], labels[LABEL + "job-name"], labels[LABEL + "job-uid"])
            life.pods.append((int(metadata["resourceVersion"]), int(labels[LABEL + "attempt"]), metadata["name"]))

    def wait(self, what: str, check: Callable[[], object], timeout_s: float):
        deadline = time.monotonic() + timeout_s
        with self.lock:
            while not (value := check()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{what}: not after {timeout_s:.0f} s")
                self.lock.wait(min(left, 0.2))
            return value


def condition(status: dict, kind: str) -> dict:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def outcome(status: dict) -> dict:
    """What must not depend on faults of ours."""
    failures = [(f["attempt"], f["reason"], f["class"], f.get("exitCode"), f["pod"].rsplit("-worker-", 1)[-1]) for f in status.get("failures", [])]
    return {"phase": status.get("phase"), "attempt": status.get("attempt"), "restarts": status.get("restarts", 0),
            "counted": status.get("restartsCountTowardsMax", 0), "failures": failures,
            "why": condition(status, "Failed").get("reason") or condition(status, "Succeeded").get("reason")}


def check_life(life: Life, once_per_attempt: bool = True) -> List[str]:
    """What is wrong with a life, whatever happened."""
    wrong = []
    final = life.final()
    if final is not None:
        wrong += [f"pod {name} of attempt {attempt} was created after the end" for version, attempt, name in life.pods if version > final[0]]
        wrong += [f"it was {final[1]['phase']} and became {s.get('phase')}" for v, s in life.states if v > final[0] and s.get("phase") != final[1]["phase"]]
    for field in ("attempt", "restarts", "restartsCountTowardsMax"):
        values = [s.get(field, 0) for _, s in life.states]
        if values != sorted(values):
            wrong.append(f"{field} went back: {values}")
    twice = [key for key, count in collections.Counter((a, n) for _, a, n in life.pods).items() if count > 1]
    if once_per_attempt and twice:
        wrong.append(f"created twice in an attempt: {twice}")
    return wrong


# ---- operator --------------------------------------------------------------------------------------------------------------------


class Operator:
    """ringmaster-operator as a process, started again whenever it ends while it is `kept`: what its Deployment would do."""

    def __init__(self, kubeconfig: pathlib.Path, log: pathlib.Path, *options: str, wrapper: Tuple[str, ...] = ()) -> None:
        self.command = [*wrapper, str(OPERATOR), "--kubeconfig", str(kubeconfig), "--log-level", "debug", *options]
        if "--listen" not in options:
            self.command += ["--listen", ":0"]
        self.log_path, self.process, self.kept, self.starts, self.codes = log, None, False, 0, []
        self.lock = threading.Lock()
        self.thread: Optional[threading.Thread] = None

    def start(self) -> "Operator":
        with self.lock:
            with open(self.log_path, "ab") as log:
                environment = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            self.starts += 1
        return self

    def keep(self) -> "Operator":
        self.kept = True
        self.thread = threading.Thread(target=self._keep, daemon=True, name="keeper")
        self.start()
        self.thread.start()
        return self

    def _keep(self) -> None:
        while self.kept:
            code = self.process.wait()
            if self.kept:
                self.codes.append(code)
                self.start()

    def kill(self) -> None:
        with self.lock:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, timeout_s: float = 30) -> int:
        """An orderly end; its exit status."""
        self.kept = False
        with self.lock:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.thread is not None:
            self.thread.join(10)
        return code

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def findings(self) -> str:
        """What sanitizers or valgrind said."""
        text = self.log()
        for word in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "== Invalid", "uninitialised", "definitely lost", "== Process terminating"):
            if word in text:
                at = text.index(word)
                return text[max(0, at - 200):at + 3000]
        return ""


# ---- the whole -------------------------------------------------------------------------------------------------------------------


class World:
    """API server, garbage collector, kubelet, proxies. Ports are its own, so that it runs beside a cluster and other worlds."""

    def __init__(self, state: pathlib.Path, port: int, etcd_port: int, crd: pathlib.Path = ROOT / "crd" / "trainingjob.yaml") -> None:
        if state.exists():
            ApiServer(state, port, etcd_port).stop()  # what a run that was killed has left
        self.server = ApiServer(state, port, etcd_port)
        self.logs = state / "logs"
        try:
            self._start(crd)
        except BaseException:
            self.server.stop()
            raise

    def _start(self, crd: pathlib.Path) -> None:
        self.server.start()
        self.user = ssl.create_default_context(cafile=str(self.server.pki.path("ca.crt")))
        self.user.load_cert_chain(str(self.server.pki.path("admin.crt")), str(self.server.pki.path("admin.key")))
        self.api = Api(self.server.port, self.user)
        self.apply_crd(crd)
        self.server.start_controllers("garbage-collector-controller", "namespace-controller", "resourcequota-controller")
        self.proxies = Proxies()
        self.kubelet, self.record = Kubelet(self.api), Record()

        def pod(kind: str, thing: dict) -> None:
            self.record.pod(kind, thing)
            self.kubelet.tell(kind, thing)

        self.watchers = [Watcher(self.api, "/api/v1/pods", pod), Watcher(self.api, JOBS + "/trainingjobs", self.record.job)]

    def apply_crd(self, path: pathlib.Path) -> None:
        self.server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
        deadline = time.monotonic() + 30
        while self.api.get(JOBS + "/trainingjobs") is None:
            assert time.monotonic() < deadline, "the CRD is not served"
            time.sleep(0.1)

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.ending = True
        self.kubelet.close()
        self.proxies.close()
        self.server.stop()

    # ---- for tests

    def namespace(self, name: str, nodes: int = 2) -> str:
        if self.api.get(f"/api/v1/namespaces/{name}") is None:
            self.api.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})
        for i in range(nodes):
            self.kubelet.add_node(f"{name}-node-{i}")
        return name

    def kubeconfig(self, name: str, server: str) -> pathlib.Path:
        """For an operator behind a proxy, which shows the API server the administrator's certificate in its place."""
        path = self.server.state / f"{name}.kubeconfig"
        authority = self.server.pki.path("ca.crt")
        tls = f", certificate-authority: '{authority}'" if server.startswith("https") else ""
        path.write_text(f"current-context: c\ncontexts: [{{name: c, context: {{cluster: k, namespace: default}}}}]\n"
                        f"clusters: [{{name: k, cluster: {{server: '{server}'{tls}}}}}]\n")
        return path

    def proxy(self, tls: bool = False) -> HttpProxy:
        pki = self.server.pki
        return HttpProxy(self.proxies, self.server.port, self.user, (str(pki.path("apiserver.crt")), str(pki.path("apiserver.key"))) if tls else None)

    def submit(self, ns: str, manifest: dict) -> str:
        made = self.api.request("POST", f"{JOBS}/namespaces/{ns}/trainingjobs", manifest)
        return made["metadata"]["uid"]

    def path(self, ns: str, name: str) -> str:
        return f"{JOBS}/namespaces/{ns}/trainingjobs/{name}"

    def patch(self, ns: str, name: str, spec: dict) -> None:
        self.api.request("PATCH", self.path(ns, name), {"spec": spec}, MERGE)

    def life(self, ns: str, name: str) -> Life:
        return self.record.wait(f"{ns}/{name} is seen", lambda: self.record.lives.get((ns, name)), 30)

    def wait_status(self, ns: str, name: str, what: str, check: Callable[[dict], object], timeout_s: float = 60) -> dict:
        life = self.life(ns, name)
        try:
            self.record.wait(f"{ns}/{name}: {what}", lambda: check(life.status), timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {json.dumps(outcome(life.status))} {life.status.get('ready')} {life.status.get('conditions')}") from None
        return life.status

    def wait_final(self, ns: str, name: str, timeout_s: float = 60) -> dict:
        return self.wait_status(ns, name, "ends", lambda s: s.get("phase") in FINAL, timeout_s)

    def wait_gone(self, ns: str, name: str, timeout_s: float = 60) -> None:
        life = self.life(ns, name)
        self.record.wait(f"{ns}/{name} is deleted", lambda: life.gone, timeout_s)

    def children(self, ns: str, uid: str) -> List[str]:
        """What there is of a job, but the job."""
        found = []
        for kind in ("pods", "services", "secrets", "configmaps", "persistentvolumeclaims"):
            for thing in self.api.items(f"/api/v1/namespaces/{ns}/{kind}"):
                owners = [o["uid"] for o in thing["metadata"].get("ownerReferences", [])]
                if uid in owners or thing["metadata"].get("labels", {}).get(LABEL + "job-uid") == uid:
                    found.append(f"{kind}/{thing['metadata']['name']}")
        return found

    def wait_no_children(self, ns: str, uid: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while left := self.children(ns, uid):
            if time.monotonic() > deadline:
                raise AssertionError(f"left behind of {uid} in {ns}: {left}")
            time.sleep(0.2)

    def events(self, ns: str, uid: str) -> Dict[str, int]:
        counts: Dict[str, int] = collections.Counter()
        for event in self.api.items(f"/api/v1/namespaces/{ns}/events?fieldSelector=involvedObject.uid={uid}"):
            counts[event["reason"]] += event.get("count") or 1
        return dict(counts)


def job(name: str, workers: int = 2, script: Optional[dict] = None, sidecar: bool = False, **spec) -> dict:
    """A TrainingJob whose processes do as `script` says: {attempt or "*": {member or "*": exit code}}. `spec` is merged over it."""
    restart = spec.pop("restart", "OnFailure")
    annotations = {SIZE: str(workers), SCRIPT: json.dumps(script or {})}
    template = {"metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "main", "image": "none:1", "command": ["train"]}], "terminationGracePeriodSeconds": 1}}
    made = {"apiVersion": "ringmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    made["spec"] = {"replicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": restart, "template": template}},
                    "failurePolicy": {"backoffBaseSeconds": 0}}
    if not sidecar:
        made["spec"]["sidecar"] = {"mode": "None"}
    made["spec"].update(spec)
    return made


def in_lanes(lanes: List[object], cases: List[object], run: Callable[[object, object], object]) -> List[object]:
    """Runs every case on one of the lanes, as one becomes free; the results in order."""
    free: queue.Queue = queue.Queue()
    for lane in lanes:
        free.put(lane)

    def one(case):
        lane = free.get()
        try:
            return run(lane, case)
        finally:
            free.put(lane)

    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
        return list(pool.map(one, cases))
