#!/usr/bin/env python3
"""Random chaos on the test cluster: jobs train, and whatever may die dies at random moments, often several things at once.

    chaos.py [--minutes 30] [--seed N] [--jobs 2]

Needs root. In every wave some jobs are started (a chief and one to three workers of tests/cluster/trainer.py), random faults happen
to them and to the cluster, then there is peace. What has to hold: every job ends Succeeded with the weights of a run in which
nothing happened; no replica trained twice at one moment; every restart went on from a step that all ranks had saved; only killed
training processes were charged to the user; nothing is left of a job that was deleted.

Prints what it did; exit code 0 when all of that held. The figures are in build/chaos.json, the seed makes the same choices again.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from cluster import Cluster  # noqa: E402
from conftest import Kube, namespace  # noqa: E402
from faults import Training, leader, operator_process  # noqa: E402
from installation import Installation  # noqa: E402

NAMESPACE = "chaos"
END_S = 300  # of a wave, after its last fault


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Chaos:
    """One run: the cluster, the dice, and what happened."""

    def __init__(self, cluster, seed):
        self.cluster, self.dice = cluster, random.Random(seed)
        self.kube = Kube(cluster, NAMESPACE)
        self.happened, self.recoveries, self.jobs_done, self.restarts = {}, [], 0, 0
        self.lost = None  # the node that is away
        self.user_faults = {}

    # ---- faults: each returns what it did, or None when there was nothing to do it to

    def _member(self, job):
        return self.dice.choice(job.members)

    def trainer_killed(self, job):
        member = self._member(job)
        victims = [p for p in job.processes() if p.member == member and p.trains]
        if not victims:
            return None
        self.user_faults[job.name] = self.user_faults.get(job.name, 0) + 1
        min(victims, key=lambda p: int(p.started)).kill()
        return member

    def sidecar_killed(self, job):
        member = self._member(job)
        victim = next((p for p in job.processes() if p.member == member and p.name == "ringmaster-side"), None)
        if victim is None:
            return None
        victim.kill()
        return member

    def sidecar_frozen(self, job):
        """Longer than its peers wait; when it wakes up the others have gone on."""
        member, seconds = self._member(job), self.dice.uniform(0.5, 4)
        victim = next((p for p in job.processes() if p.member == member and p.name == "ringmaster-side"), None)
        if victim is None:
            return None
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(seconds)
        if victim.is_there():
            os.kill(victim.pid, signal.SIGCONT)
        return f"{member} for {seconds:.1f} s"

    def pod_deleted(self, job):
        member = self._member(job)
        hard = self.dice.choice((["--grace-period=0", "--force"], []))
        job.kube.run("delete", "pod", f"{job.name}-{member}", "--wait=false", *hard, check=False)
        return f"{member} {' '.join(hard)}".strip()

    def node_lost(self, _job):
        if self.lost is not None:
            return None
        self.lost = self.cluster.node(self.dice.randint(1, self.cluster.size))
        self.lost.kill()
        return self.lost.name

    def node_back(self, _job):
        if self.lost is None:
            return None
        name = self.lost.name
        self.lost.up()
        self.lost = None
        return name

    def leader_killed(self, _job):
        held = leader(self.kube)
        try:
            operator_process(held).kill()
        except AssertionError:
            return None
        return held

    def api_server_away(self, _job):
        seconds = self.dice.choice((1, 3, 10, 30))
        self.cluster.processes.kill("kube-apiserver")
        time.sleep(seconds)
        self.cluster.control.up()
        return f"for {seconds} s"

    def etcd_killed(self, _job):
        self.cluster.processes.kill("etcd")
        self.cluster.control.up()
        return "and started again"

    def controllers_restarted(self, _job):
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.cluster.processes.kill(name)
        self.cluster.control.up()
        return "controller-manager and scheduler"

    FAULTS = ((trainer_killed, 5), (sidecar_killed, 4), (sidecar_frozen, 3), (pod_deleted, 4), (node_lost, 2), (node_back, 2),
              (leader_killed, 2), (api_server_away, 1), (etcd_killed, 1), (controllers_restarted, 1))

    # ---- a wave

    def wave(self, number, jobs):
        trainings = []
        for i in range(jobs):
            name = f"wave-{number}-{i}"
            steps, every = self.dice.randint(150, 400), self.dice.choice((5, 10, 25))
            workers = self.dice.randint(1, 3)
            trainings.append(Training(self.cluster, self.kube, name, steps=steps, every=every, pause_s=0.04, workers=workers,
                                      runPolicy={"backoffLimit": 20}))
            trainings[-1].start()
        self.user_faults = {}
        for _ in range(self.dice.randint(1, 5)):
            time.sleep(self.dice.choice((0.0, 0.3, 2, 5, 8)))
            fault = self.dice.choices([f for f, _ in self.FAULTS], [w for _, w in self.FAULTS])[0]
            job = self.dice.choice(trainings)
            did = fault(self, job)
            if did is not None:
                say(f"  {fault.__name__.replace('_', ' ')}: {did} ({job.name} at step {job.step()})")
                self.happened[fault.__name__] = self.happened.get(fault.__name__, 0) + 1
        peace = time.time()
        if self.lost is not None and self.dice.random() < 0.7:
            self.node_back(None)
        for training in trainings:
            self._end(training, peace)
        if self.lost is not None:
            self.node_back(None)
        self.cluster.wait_ready()

    def _end(self, training, peace):
        status = training.wait_succeeded(END_S)
        training.watch.stop()
        training.check_ended()
        charged, most = status.get("restartsCountTowardsMax", 0), self.user_faults.get(training.name, 0)
        assert charged <= most, f"{charged} restarts were charged to the user, who is to blame for {most} at most: {training.describe()}"
        rounds = training.check_resumptions()
        self.restarts += status.get("restarts", 0)
        self.jobs_done += 1
        begun = [min(e["time"] for e in r.values()) for r in rounds.values()]
        again = max((b for b in begun if b > peace), default=None)
        if again is not None:
            self.recoveries.append(again - peace)
        say(f"  {training.name}: Succeeded in attempt {status['attempt']}, {status.get('restarts', 0)} restarts, {charged} charged")
        training.remove()


@contextlib.contextmanager
def peace_afterwards(cluster, keep):
    """The operator installed and a namespace, for as long as there is chaos; what was there before is there again."""
    installation, kube = Installation(cluster), Kube(cluster)
    was_there = installation.is_there()
    try:
        installation.add()
        kube.run("delete", "namespace", NAMESPACE, "--ignore-not-found")
        with namespace(cluster, NAMESPACE):
            yield
    finally:
        kube.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
        if not was_there:
            installation.remove()
        if not keep:
            cluster.down()


@contextlib.contextmanager
def quiet_afterwards(chaos):
    """However it ends: nobody watches on, and no node stays away."""
    try:
        yield
    finally:
        for thread in threading.enumerate():
            if hasattr(thread, "training"):
                thread.over.set()
        if chaos.lost is not None:
            chaos.node_back(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2, help="at the same time (default 2)")
    arguments = parser.parse_args()

    cluster = Cluster(pathlib.Path(os.environ.get("CLUSTER_STATE", ROOT / "build" / "cluster")).resolve(), 0)
    keep = bool(os.environ.get("CLUSTER_KEEP")) or cluster.is_up()
    cluster.up()
    chaos, number = Chaos(cluster, arguments.seed), 0
    with peace_afterwards(cluster, keep), quiet_afterwards(chaos):
        until = time.monotonic() + arguments.minutes * 60
        say(f"chaos for {arguments.minutes:g} minutes, seed {arguments.seed}")
        while time.monotonic() < until:
            number += 1
            say(f"wave {number}")
            chaos.wave(number, arguments.jobs)

    faults = sum(chaos.happened.values())
    figures = {"seed": arguments.seed, "minutes": arguments.minutes, "waves": number, "jobs": chaos.jobs_done, "faults": faults,
               "by kind": chaos.happened, "restarts": chaos.restarts,
               "processes started again after the last fault, p50 s": round(statistics.median(chaos.recoveries), 2) if chaos.recoveries else None}
    (ROOT / "build" / "chaos.json").write_text(json.dumps(figures, indent=1) + "\n")
    say(f"{chaos.jobs_done} jobs lived through {faults} faults: {json.dumps(figures)}")
    return 0 if faults and chaos.jobs_done else 1


if __name__ == "__main__":
    sys.exit(main())
