"""A job that trains on the test cluster, what may happen to it, and what has to hold all the while. Used by test_faults.py and by
tests/chaos.

All nodes are on this machine, so that processes are found in /proc by the environment that their pod gave them, and a
hostPath volume is what a network file system is elsewhere.
"""

import json
import os
import pathlib
import shutil
import signal
import threading

from conftest import wait_until
from installation import NAMESPACE
from trainer import expected

HERE = pathlib.Path(__file__).resolve().parent
IMAGE = "ringmaster-examples:1"
POLL_S = 0.15


# ---- processes -------------------------------------------------------------------------------------------------------------


class Process:
    """One process of this machine whose environment names a job, or an operator's pod."""

    def __init__(self, pid, started, environment, name):
        self.pid, self.started, self.environment, self.name = pid, started, environment, name
        self.pod = self._namespace()

    def _namespace(self):
        try:
            return os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return ""

    def get(self, key):
        return self.environment.get(f"RINGMASTER_{key}", "")

    @property
    def member(self):
        return f"{self.get('ROLE')}-{self.get('INDEX')}"

    @property
    def trains(self):
        """The launcher's child and what that starts; not the launcher, whose environment knows of no round."""
        return bool(self.get("FENCE")) and self.name != "ringmaster-laun"

    def is_there(self):
        return _started(self.pid) == self.started

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def _started(pid):
    """When it was started, None when it is not there or only waits to be reaped."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Processes:
    """Those of this machine; an environment is read once (a process that began a moment ago is read again: it may not have
    called exec yet)."""

    def __init__(self):
        self.known = {}

    def find(self):
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            pid, started = int(entry), _started(int(entry))
            if started is None:
                continue
            known = self.known.get((pid, started))
            young = os.sysconf("SC_CLK_TCK") * float(pathlib.Path("/proc/uptime").read_text().split()[0]) - int(started) < 200
            found[(pid, started)] = known if known is not None and not young else self._read(pid, started)
        self.known = found
        return [p for p in found.values() if p.environment]

    @staticmethod
    def _read(pid, started):
        try:
            raw = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return Process(pid, started, {}, "")
        pairs = (item.partition(b"=") for item in raw.split(b"\0"))
        wanted = {k.decode(): v.decode(errors="replace") for k, _, v in pairs if k.startswith(b"RINGMASTER_") or k == b"POD_NAME"}
        return Process(pid, started, wanted, name)


# ---- what has to hold --------------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Looks all the time whether one replica is there twice: as a pod that is not over, or as processes of two pods or of two rounds."""

    def __init__(self, training):
        super().__init__(daemon=True)
        self.training, self.over, self.looks, self.violations = training, threading.Event(), 0, []

    def run(self):
        processes = Processes()
        while not self.over.wait(POLL_S):
            self._look(processes.find())
            self.looks += 1

    def _look(self, processes):
        lives = {}
        for process in processes:
            if process.get("JOB_UID") == self.training.uid and process.trains:
                lives.setdefault(process.member, set()).add((process.pod, process.get("ROUND")))
        for member, found in lives.items():
            if len(found) > 1:
                # Both were listed; are both there at one moment?
                again = [p for p in processes if p.get("JOB_UID") == self.training.uid and p.trains and p.member == member and p.is_there()]
                if len({(p.pod, p.get("ROUND")) for p in again}) > 1:
                    self.violations.append(f"{member} trains twice: {[(p.pid, p.pod, p.get('ATTEMPT'), p.get('ROUND')) for p in again]}")

    def stop(self):
        self.over.set()
        self.join()
        assert self.looks > 3, "the watch did not watch"
        assert not self.violations, self.violations


def lost_pods_twice(pods):
    """Members with two pods that are not over."""
    lives = {}
    for pod in pods:
        labels = pod["metadata"]["labels"]
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            key = f"{labels['ringmaster.dev/replica-type']}-{labels['ringmaster.dev/replica-index']}"
            lives.setdefault(key, []).append(pod["metadata"]["uid"])
    return {member: uids for member, uids in lives.items() if len(uids) > 1}


# ---- a job -------------------------------------------------------------------------------------------------------------------


class Training:
    """A chief and three workers (trainer.py, or a program of the caller's) with a volume that survives nodes."""

    def __init__(self, cluster, kube, name, steps=150, every=10, pause_s=0.05, command=None, workers=3, **spec):
        self.cluster, self.kube, self.name, self.steps, self.every = cluster, kube, name, steps, every
        self.volume = cluster.state / "volumes" / kube.namespace / name
        self.trace_directory = self.volume / "trace"
        self.checkpoints = self.volume / "checkpoints"
        shutil.rmtree(self.volume, ignore_errors=True)  # of an earlier run
        for directory in (self.volume, self.trace_directory, self.checkpoints):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o777)
        shutil.copyfile(HERE / "trainer.py", self.volume / "trainer.py")
        self.manifest = self._manifest(command or ["python", "/data/trainer.py", str(steps), str(every), str(pause_s), "/data/trace"], workers, spec)
        self.uid = ""
        self.members = ["chief-0", *(f"worker-{i}" for i in range(workers))]
        self.watch = None

    def _manifest(self, command, workers, spec):
        container = {"name": "tensorflow", "image": IMAGE, "command": command, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5,
                             "volumes": [{"name": "data", "hostPath": {"path": str(self.volume), "type": "Directory"}}],
                             "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                                                            "labelSelector": {"matchLabels": {"ringmaster.dev/job-name": self.name}}}]}}
        roles = {"Chief": {"replicas": 1, "restartPolicy": "OnFailure", "template": template},
                 "Worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": template}}
        body = {"replicaSpecs": roles, "checkpoint": {"path": "/data/checkpoints", "everySteps": self.every},
                "failurePolicy": {"nodeLost": {"forceDeleteAfterSeconds": 1}}, **spec}
        return {"apiVersion": "ringmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": self.name}, "spec": body}

    def start(self):
        self.kube.apply(self.manifest)
        self.uid = self.kube.get("trainingjob", self.name)["metadata"]["uid"]
        self.watch = Watch(self)
        self.watch.start()
        return self

    # ---- what the ranks did

    def trace(self, member):
        path = self.trace_directory / f"{member}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def step(self):
        """The last step that every rank has done."""
        return min(max((e["step"] for e in self.trace(m) if e["what"] == "step"), default=0) for m in self.members)

    def committed(self):
        """The newest committed step on the volume; -1: none."""
        found = [int(p.parent.name.split("-")[0][1:]) for p in self.checkpoints.glob("*/s*/COMMIT")]
        return max(found, default=-1)

    def wait_trained(self, step, timeout_s=120):
        """Every rank has come to this step, and a checkpoint counts."""
        wait_until(f"{self.name} trains to step {step}", lambda: self._alive() and self.step() >= step and self.committed() > 0, timeout_s)

    def _alive(self):
        status = self.kube.run("get", "trainingjob", self.name, "-o", "jsonpath={.status.phase}", check=False)
        assert status.stdout != "Failed", self.describe()
        return True

    def trains_again(self, member, since):
        """The first step that a process did which was started after `since`; None: not yet."""
        started = {e["pid"] for e in self.trace(member) if e["what"] == "started" and e["time"] > since}
        return next((e for e in self.trace(member) if e["what"] == "step" and e["time"] > since and e["pid"] in started), None)

    def wait_trains_again(self, since, timeout_s=180):
        """Seconds from the fault to the first step that all ranks have done after it, each in a new process."""
        found = wait_until(f"{self.name} trains again",
                           lambda: (again := [self.trains_again(m, since) for m in self.members]) and all(again) and again, timeout_s)
        return max(e["time"] for e in found) - since

    # ---- processes

    def processes(self):
        return [p for p in Processes().find() if p.get("JOB_UID") == self.uid]

    def trainer_of(self, member):
        """The launcher's child: of those that train, the one that was there first."""
        found = [p for p in self.processes() if p.member == member and p.trains]
        assert found, f"no process of {member} trains"
        return min(found, key=lambda p: int(p.started))

    def sidecar_of(self, member):
        return next(p for p in self.processes() if p.member == member and p.name == "ringmaster-side")

    # ---- the end

    def wait_succeeded(self, timeout_s=180):
        return self.kube.wait_phase(self.name, "Succeeded", timeout_s=timeout_s)

    def check(self, faults_of_user=0, restarts=None, since=None, committed=-1):
        """After the end: everything that has to hold. `since`, `committed`: when the fault was, and what the volume held then."""
        status = self.kube.status(self.name)
        self.watch.stop()
        assert not lost_pods_twice(self.kube.list("pods", f"ringmaster.dev/job-name={self.name}"))
        assert status["phase"] == "Succeeded", status
        assert status.get("restartsCountTowardsMax", 0) == faults_of_user, self.describe()
        if restarts is not None:
            assert status.get("restarts", 0) == restarts, self.describe()
        self.check_ended()
        self.check_resumptions()
        if since is not None:
            self._check_resumed(since, committed)

    def check_ended(self):
        """Every rank ended in the last round, and its weights are those of a run in which nothing happened."""
        last = {m: self.trace(m)[-1] for m in self.members}
        assert {e["what"] for e in last.values()} == {"ended"}, last
        assert {(e["attempt"], e["round"], e["value"], e["right"]) for e in last.values()} == {
            (last["chief-0"]["attempt"], last["chief-0"]["round"], last["chief-0"]["value"], True)}, last

    def check_resumptions(self):
        """Each time that processes were started: all ranks went on from one step, which all had saved before, with its state."""
        rounds = {}
        for member in self.members:
            for e in self.trace(member):
                if e["what"] in ("resumed", "scratch"):
                    rounds.setdefault((e["attempt"], e["round"]), {})[member] = e
        for when, begun in sorted(rounds.items()):
            steps = {e["step"] for e in begun.values()}
            assert len(steps) == 1, (when, begun)
            step = steps.pop()
            assert {e["value"] for e in begun.values()} == {expected(step, len(self.members))}, (when, begun)
            for member in self.members if step > 0 else ():
                before = min(e["time"] for e in begun.values())
                assert any(e["what"] == "saved" and e["step"] == step and e["time"] < before for e in self.trace(member)), (when, member, step)
        return rounds

    def _check_resumed(self, since, committed):
        """What began after the fault is not older than what the volume had when it happened."""
        after = [begun for begun in self.check_resumptions().values() if min(e["time"] for e in begun.values()) > since]
        assert after and committed > 0, (since, committed)
        assert min(e["step"] for begun in after for e in begun.values()) >= committed, (after, committed)

    def remove(self):
        """Deletes the job; nothing of it may remain."""
        self.kube.run("delete", "trainingjob", self.name, "--ignore-not-found")

        def gone():
            objects = [o for kind in ("pods", "services", "secrets") for o in self.kube.list(kind) if o["metadata"]["name"].startswith(self.name)]
            return not objects and not self.processes()

        wait_until(f"nothing is left of {self.name}", gone, 60, 0.5)

    def describe(self):
        """For a test that fails: the status, and the end of what each rank did."""
        ends = {m: self.trace(m)[-3:] for m in self.members}
        return f"{json.dumps(self.kube.status(self.name), indent=1)}\n{json.dumps(ends, indent=1)}"


# ---- the operator ------------------------------------------------------------------------------------------------------------


def leader(kube):
    """The pod of the operator that holds the lease; its identity has a random word behind it."""
    lease = kube.in_namespace(NAMESPACE).get("lease", "ringmaster-operator") or {}
    return (lease.get("spec", {}).get("holderIdentity") or "").partition("_")[0]


def operator_process(pod):
    found = [p for p in Processes().find() if p.environment.get("POD_NAME") == pod and p.name.startswith("ringmaster-oper")]
    assert found, f"no process of the operator's pod {pod}"
    return found[0]
