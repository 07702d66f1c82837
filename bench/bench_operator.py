#!/usr/bin/env python3
"""The operator against Kubeflow's training operator, on one control plane with fake nodes (plane.py), and alone at scale.

bench_operator.py OUT.json [PART...]: the parts are those of PARTS, all when none is named.

Jobs are submitted by parallel POSTs. "pods/s" is from the first POST of a job to the last pod in etcd, "running" to the last pod
whose status says so; CPU and memory are of the operator's process, which does all of the work. Beside each run of ours the
limit is measured: parallel POSTs of bare pods by somebody who does nothing else.
"""

import statistics
import sys
import threading
import time

from operators import COMMAND, IMAGE, JOBS, PEER, TF_JOBS, Peer, Ringmaster, install_peer, tf_job, training_job
from plane import ROOT, Plane, Running
from shell import ClusterError, wait_for
from table import finish, row

SIZES = ((200, 4), (500, 4))
SETTLE_S = 4
TIMEOUT_S = 600
TRIALS = 2          # of ours and of the raw limit, one beside the other: medians
MANY = 10000
FINISHED = 20000
IN_FLIGHT = 16


def namespace(plane, name):
    try:
        plane.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    except ClusterError as error:
        if "409" not in str(error):
            raise
    plane.wipe(name)
    return name


def raw_limit(plane, count):
    """Pods a second from somebody who does nothing but POST them."""
    name = namespace(plane, "raw")
    container = {"name": "tensorflow", "image": IMAGE, "command": COMMAND, "env": [{"name": "TF_CONFIG", "value": "x" * 300}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod-@I@", "namespace": name}, "spec": {"containers": [container]}}
    said = plane.post(f"/api/v1/namespaces/{name}/pods", pod, count, in_flight=IN_FLIGHT)
    time.sleep(SETTLE_S)  # the scheduler and kwok have work left
    plane.wipe(name)
    return count / said["seconds"]


class Run:
    """`jobs` x `replicas` through an operator that runs: rates, its CPU for a job in ms, its memory in MB."""

    def __init__(self, plane, operator, path, manifest, ns, jobs, replicas, first=0):
        pods, running = jobs * replicas, Running(plane, ns)
        self.memory_before = operator.rss()
        cpu, began = operator.cpu(), time.monotonic()
        submit = threading.Thread(target=self._submit, args=(plane, path.format(ns), manifest, jobs, first))
        submit.start()
        there = plane.count("pods", ns) if first else 0
        wait_for(f"{operator.name} has created {pods} pods", lambda: operator.alive() and plane.count("pods", ns) >= there + pods, TIMEOUT_S, 0.02)
        self.created = pods / (time.monotonic() - began)
        submit.join()
        self.running = pods / (running.wait(pods, TIMEOUT_S) - began)
        running.close()
        time.sleep(SETTLE_S)
        self.cpu = (operator.cpu() - cpu) / jobs * 1000
        self.memory, self.peak = operator.rss(), operator.peak()
        print(f"  {operator.name} {jobs} x {replicas}: {self.created:.0f} pods/s created, {self.running:.0f} running, {self.cpu:.1f} ms CPU a job, "
              f"{self.memory:.0f} MB (peak {self.peak:.0f})", file=sys.stderr)

    @staticmethod
    def _submit(plane, path, manifest, jobs, first):
        plane.post(path, manifest, jobs, first, IN_FLIGHT)


def ours(plane, jobs, replicas, sidecar="None"):
    ns = namespace(plane, "ours")
    operator = Ringmaster(plane).wait_leading()
    try:
        return Run(plane, operator, JOBS, training_job(replicas, ns, sidecar=sidecar), ns, jobs, replicas)
    finally:
        operator.stop()
        plane.wipe(ns)


def theirs(plane, jobs, replicas, *options):
    ns = namespace(plane, "theirs")
    operator = Peer(plane, options)
    try:
        time.sleep(3)  # its informers
        return Run(plane, operator, TF_JOBS, tf_job(replicas, ns), ns, jobs, replicas)
    finally:
        operator.stop()
        plane.wipe(ns)


# ---- against the peer --------------------------------------------------------------------------------------------------------


def compare(plane):
    rows = []
    for jobs, replicas in SIZES:
        what = f"{jobs} jobs x {replicas}"
        runs, sidecars, limits = [], [], [raw_limit(plane, jobs * replicas)]
        for _ in range(TRIALS):
            runs.append(ours(plane, jobs, replicas))
            limits.append(raw_limit(plane, jobs * replicas))
            sidecars.append(ours(plane, jobs, replicas, "Auto"))
            limits.append(raw_limit(plane, jobs * replicas))
        limit = statistics.median(limits)
        print(f"  limit: {', '.join(f'{x:.0f}' for x in limits)} pods/s", file=sys.stderr)
        for name, options in (("", ()), (" -controller-threads 10", ("-controller-threads", "10"))):
            peer = theirs(plane, jobs, replicas, *options)
            made, cpu, memory = (statistics.median(getattr(r, f) for r in runs) for f in ("created", "cpu", "memory"))
            runs_at = statistics.median(r.running for r in runs)
            by = PEER + name
            rows += [
                row(f"{what}: pods created", "1/s", made, ">= 20x", made >= 20 * peer.created, by, peer.created),
                row(f"{what}: pods running", "1/s", runs_at, "> 1x", runs_at > peer.running, by, peer.running),
                row(f"{what}: CPU for a job", "ms", cpu, "<= 1/10", cpu * 10 <= peer.cpu, by, peer.cpu),
                row(f"{what}: memory", "MB", memory, "<= 1/4" if jobs == 500 else "< 1x", memory * (4 if jobs == 500 else 1) <= peer.memory, by, peer.memory),
            ]
        for name, some in (("", runs), (", with sidecars", sidecars)):
            made = statistics.median(r.created for r in some)
            rows.append(row(f"{what}{name}: pods created", "1/s", made, ">= 45 %" if some is runs else "> 1/s", made >= 0.45 * limit if some is runs else True,
                            f"bare POSTs, {IN_FLIGHT} in flight", limit))
    return rows


# ---- at scale ----------------------------------------------------------------------------------------------------------------


def at_once(plane, jobs, replicas):
    """All of it in one go: nothing refused, and what a pod costs in memory."""
    ns = namespace(plane, "many")
    operator = Ringmaster(plane).wait_leading()
    try:
        manifest = training_job(replicas, ns, sidecar="None", frameworks=["None"] if replicas > 1000 else ["TensorFlow"])
        run = Run(plane, operator, JOBS, manifest, ns, jobs, replicas)
        what, pods = f"{jobs} x {replicas}", jobs * replicas
        failed, kb = operator.metric("pod_create_errors_total"), (run.memory - run.memory_before) * 1024 / pods
        idle = idle_cpu(operator)
        return [
            row(f"{what}: pods created", "1/s", run.created, "> 1/s", True),
            row(f"{what}: refused creations", "", failed, "0", failed == 0),
            row(f"{what}: memory for a pod", "KB", kb, "<= 20", kb <= 20),
            row(f"{what}: CPU for a pod", "ms", run.cpu / replicas, "< 10", run.cpu / replicas < 10),
            row(f"{what}: CPU when all of them run", "%", idle, "<= 2", idle <= 2),
        ] + (restarts(plane, operator, what) if jobs > 1 else [])
    finally:
        operator.stop()
        plane.wipe(ns)


def idle_cpu(operator, seconds=10):
    wait_for(f"{operator.name} has nothing to do", lambda: operator.metric("queue_depth") + operator.metric("api_requests_waiting") == 0, TIMEOUT_S, 1)
    before = operator.cpu()
    time.sleep(seconds)
    return (operator.cpu() - before) / seconds * 100


def restarts(plane, first, what):
    """With all of these jobs there: a second operator, and the first one killed."""
    second = Ringmaster(plane, "standby", 18381)
    try:
        start = second.ready - second.began
        memory = second.rss()
        first.process.kill()
        killed = time.monotonic()
        second.wait_leading()
        failover = time.monotonic() - killed
        second.stop()
        third = Ringmaster(plane, "alone", 18382).wait_leading()
        rests = time.monotonic() - third.began
        third.stop()
    finally:
        second.stop()
    return [
        row(f"{what}: operator started -> knows all jobs and pods", "s", start, "<= 10", start <= 10),
        row(f"{what}: its memory then", "MB", memory, "<= 200", memory <= 200),
        row(f"{what}: leader killed -> the other one leads", "s", failover, "<= 20", failover <= 20),
        row(f"{what}: started after an orderly end -> leads", "s", rests, "<= 10", rests <= 10),
    ]


def finished(plane):
    """20,000 jobs that are over: they cost nothing, and a new one does not wait for them."""
    ns = namespace(plane, "over")
    manifest = training_job(4, ns)
    plane.post(JOBS.format(ns), manifest, FINISHED, in_flight=IN_FLIGHT)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [{"type": t, "status": "True", "reason": "Bench", "message": "", "lastTransitionTime": now} for t in ("Created", "Succeeded")]
    status = {"status": {"phase": "Succeeded", "attempt": 1, "startTime": now, "completionTime": now, "conditions": conditions}}
    plane.post(JOBS.format(ns) + "/job-@I@/status", status, FINISHED, in_flight=IN_FLIGHT, method="PATCH", kind="application/merge-patch+json")
    operator = Ringmaster(plane).wait_leading()
    try:
        time.sleep(SETTLE_S)
        writes, idle, memory = operator.metric("status_writes_total"), idle_cpu(operator), operator.rss()
        times = []
        for i in range(5):
            new = namespace(plane, f"new-{i}")
            began = time.monotonic()
            plane.request("POST", JOBS.format(new), training_job(4, new, name="fresh"))
            wait_for("a new job's pods", lambda ns=new: plane.count("pods", ns) >= 4, 30, 0.005)
            times.append(time.monotonic() - began)
            plane.wipe(new)
        return [
            row(f"{FINISHED} finished jobs: status writes for them", "", writes, "0", writes == 0),
            row(f"{FINISHED} finished jobs: CPU when idle", "%", idle, "<= 0.5", idle <= 0.5),
            row(f"{FINISHED} finished jobs: memory", "MB", memory, "<= 100", memory <= 100),
            row(f"{FINISHED} finished jobs: a new job's last pod", "s", max(times), "< 1", max(times) < 1),
            row(f"{FINISHED} finished jobs: operator started -> leads", "s", operator.ready - operator.began, "<= 20", operator.ready - operator.began <= 20),
        ]
    finally:
        operator.stop()
        plane.wipe(ns)


PARTS = {
    "compare": compare,
    "many-jobs": lambda plane: at_once(plane, MANY, 1),
    "wide-job": lambda plane: at_once(plane, 1, MANY),
    "finished": finished,
}


def main():
    parts = sys.argv[2:] or list(PARTS)
    state = ROOT / "build" / "bench-plane"
    if state.exists():
        Plane(state).stop()  # what a run that was killed has left
    plane, rows = Plane(state), []
    try:
        plane.start()
        install_peer(plane)
        raw_limit(plane, 400)  # the first pods after a start are slower
        for part in parts:
            rows += PARTS[part](plane)
    finally:
        plane.stop()
    return finish(rows, sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
