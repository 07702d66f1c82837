"""Job traffic for a fault_world: jobs of several kinds, one after the other, each with the end that it must come to."""

import json
import threading
import time

from fault_world import Refused, check_life, condition, job, outcome

QUIET_S = 60         # for what is left, once the faults are over


def succeeds(world, ns, name):
    world.submit(ns, job(name, workers=3, script={"*": {"*": 0}}, sidecar=True))
    return {"phase": "Succeeded", "attempt": 1, "restarts": 0, "counted": 0}


def restarts_twice(world, ns, name):
    world.submit(ns, job(name, script={"1": {"worker-1": 137}, "2": {"worker-0": 139}, "3": {"*": 0}}, restart="ExitCode"))
    return {"phase": "Succeeded", "attempt": 3, "restarts": 2, "counted": 2}


def uses_its_budget_up(world, ns, name):
    world.submit(ns, job(name, workers=1, script={"*": {"*": 1}}, runPolicy={"backoffLimit": 2}))
    return {"phase": "Failed", "attempt": 3, "counted": 2, "why": "BackoffLimitExceeded"}


def fails_for_good(world, ns, name):
    world.submit(ns, job(name, script={"*": {"worker-1": 3}}, restart="ExitCode"))
    return {"phase": "Failed", "attempt": 1, "restarts": 0, "why": "PermanentExitCode"}


def loses_a_pod(world, ns, name):
    world.submit(ns, job(name, script={"2": {"*": 0}}, runPolicy={"backoffLimit": 0}))
    world.wait_status(ns, name, "runs", lambda s: s.get("phase") == "Running" and condition(s, "PodsReady").get("status") == "True")
    world.api.quietly("DELETE", f"/api/v1/namespaces/{ns}/pods/{name}-worker-1")
    return {"phase": "Succeeded", "attempt": 2, "restarts": 1, "counted": 0}


def pauses(world, ns, name):
    world.submit(ns, job(name, script={"2": {"*": 0}}))
    world.wait_status(ns, name, "runs", lambda s: s.get("phase") == "Running")
    world.patch(ns, name, {"suspend": True})
    world.wait_status(ns, name, "is suspended", lambda s: s.get("phase") == "Suspended")
    world.patch(ns, name, {"suspend": False})
    return {"phase": "Succeeded", "attempt": 2, "restarts": 0, "counted": 0}


def is_deleted(world, ns, name):
    uid = world.submit(ns, job(name))
    world.wait_status(ns, name, "runs", lambda s: s.get("phase") == "Running")
    world.api.request("DELETE", world.path(ns, name))
    world.wait_gone(ns, name)
    world.wait_no_children(ns, uid)


KINDS = [succeeds, restarts_twice, uses_its_budget_up, fails_for_good, loses_a_pod, pauses, is_deleted]


def run_one(world, ns, kind, name, wait_s):
    """What is wrong with the job in the end; "" = nothing. Nothing is left of it then."""
    try:
        wanted = kind(world, ns, name)
        if wanted is None:
            return ""
        got = outcome(world.wait_final(ns, name, wait_s()))
        world.api.request("DELETE", world.path(ns, name))
        world.wait_no_children(ns, world.life(ns, name).uid)
        return "" if got.items() >= wanted.items() else f"{ns}/{name}: {json.dumps(got)}, expected {json.dumps(wanted)}"
    except (AssertionError, Refused) as error:
        return f"{ns}/{name}: {error}"


class Traffic:
    """Jobs, one after the other, `until` then or until the end is asked for; what each came to."""

    def __init__(self, world, ns, until, counter) -> None:
        self.world, self.ns, self.until, self.counter, self.wrong, self.done = world, ns, until, counter, [], 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """No further job is begun; returns when the last one is over."""
        self.until = time.monotonic()
        self.thread.join(2 * QUIET_S)
        if self.thread.is_alive():
            self.wrong.append(f"{self.ns}: the last job is not over")

    def _run(self) -> None:
        while time.monotonic() < self.until:
            number = next(self.counter)
            kind = KINDS[number % len(KINDS)]
            said = run_one(self.world, self.ns, kind, name_of(kind, number), lambda: max(self.until - time.monotonic(), 0) + QUIET_S)
            self.wrong += [said] if said else []
            self.done += 1


def name_of(kind, number):
    return f"{kind.__name__.replace('_', '-')}-{number}"


def wrong_lives(world, spaces):
    """What is wrong about everything that was ever seen in these namespaces."""
    wrong = [v for v in world.kubelet.violations if v.split("/")[0] in spaces or "itself" in v] + [str(w.error) for w in world.watchers if w.error]
    for (ns, name), life in world.record.lives.items():
        wrong += [f"{ns}/{name}: {w}" for w in check_life(life) if ns in spaces]
    return wrong + [f"left behind in {ns}: {p['metadata']['name']}" for ns in spaces for p in world.api.items(f"/api/v1/namespaces/{ns}/pods")]


def history(world, said, operators):
    """What is known of the job that `said` begins with."""
    ns, _, name = said.partition(":")[0].partition("/")
    life = world.record.lives.get((ns, name))
    if life is None:
        return ""
    steps = sorted([(v, f"{s.get('phase')} attempt {s.get('attempt')}") for v, s in life.states] + [(v, f"pod {n} of attempt {a}") for v, a, n in life.pods])
    lines = [line for o in operators for line in o.log().splitlines() if f"namespace={ns} job={name} " in line]
    return "\n".join([f"{v} {what}" for v, what in steps] + lines[-60:])
