"""A cluster for tests of faults: a real API server with garbage collector, nodes that run nothing, and a record of all that happened.

The kubelet (fault_kubelet.py) knows which processes live, so that two of one (role, index) at a time, or a pod that was deleted by
force from a node that is well, are seen; the record knows what followed what, by resourceVersion.
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
from fault_kubelet import LABEL, MERGE, SCRIPT, SIZE, Kubelet
from fault_proxy import HttpProxy, Proxies

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VARIANT = os.environ.get("VARIANT", "release")
BUILD = pathlib.Path(os.environ.get("RINGMASTER_BUILD") or ROOT / "build" / ("" if VARIANT == "release" else VARIANT))
OPERATOR = BUILD / "bin" / "ringmaster-operator"
VALGRIND = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite,indirect",
            "--errors-for-leak-kinds=definite,indirect"]

JOBS = "/apis/ringmaster.dev/v1alpha1"
FINAL = ("Succeeded", "Failed")


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text[:2000]}")
        self.code = code


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
        with self.lock, contextlib.suppress(ProcessLookupError):
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
        for word in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "== Invalid", "uninitialised", "definitely lost",
                     "== Process terminating"):
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
