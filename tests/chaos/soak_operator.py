#!/usr/bin/env python3
"""Soak: one operator under steady job churn for N minutes (default 30), with memory and descriptors measured all the while.

    build/venv/bin/python tests/chaos/soak_operator.py [MINUTES]

Jobs of every kind (tests/cluster/traffic.py) are made and end as they must, against a real API server with pods that a thread moves
through their phases. It fails when a job comes to a wrong end, the operator restarts, memory grows by more than 2 MiB an hour beyond
its first third, or descriptors are left open. Figures in build/bench/soak-operator.json. VARIANT as for the tests.
"""

import itertools
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from fault_world import VARIANT, Operator, World, check_life  # noqa: E402
from traffic import QUIET_S, Traffic, history, wrong_lives  # noqa: E402

SPACES = ("soak-a", "soak-b")
DRIVERS = 4
EVERY_S = 2.0
GROWTH_KB_PER_HOUR = 2048
ALLOCATOR_KB = 1024  # what two equal moments may differ by


def sample(pid):
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    ticks = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return {"rss_kb": int(status["VmRSS"].split()[0]), "fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(status["Threads"]),
            "cpu_s": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")}


def slope(points):
    """Least squares, y per x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def judge(samples, jobs, wrong):
    """The figures, and what is wrong with them."""
    settled = samples[len(samples) // 3:]
    growth = slope([(s["at_s"] / 3600, s["rss_kb"]) for s in settled])
    rise = growth * (settled[-1]["at_s"] - settled[0]["at_s"]) / 3600
    idle, last = samples[0], samples[-1]
    figures = {"jobs": jobs, "seconds": round(last["at_s"]), "rss_kb_first": idle["rss_kb"], "rss_kb_settled": settled[0]["rss_kb"],
        "rss_kb_last": last["rss_kb"],
               "rss_kb_max": max(s["rss_kb"] for s in samples), "growth_kb_per_hour": round(growth), "fds_first": idle["fds"], "fds_last": last["fds"],
               "fds_max": max(s["fds"] for s in samples), "cpu_ms_per_job": round(1000 * last["cpu_s"] / max(jobs, 1), 2)}
    if growth > GROWTH_KB_PER_HOUR and rise > ALLOCATOR_KB and VARIANT == "release":
        wrong.append(f"memory grows by {growth:.0f} KiB an hour")
    if last["fds"] > idle["fds"] + 4:
        wrong.append(f"{last['fds']} descriptors are open in the end, {idle['fds']} were in the beginning")
    if len({s["threads"] for s in samples}) > 1:
        wrong.append(f"threads come and go: {sorted({s['threads'] for s in samples})}")
    return figures


def soak(world, minutes):
    operator = Operator(world.server.kubeconfig, world.logs / "operator.log", "--namespaces", ",".join(world.namespace(s) for s in SPACES),
                        "--leader-elect=false", "--log-level", "warn").start()
    time.sleep(3)
    began, samples = time.monotonic(), []
    until, counter = began + 60 * minutes, itertools.count()
    traffic = [Traffic(world, ns, until, counter) for ns in SPACES for _ in range(DRIVERS)]
    said = 0.0
    while any(t.thread.is_alive() for t in traffic) and operator.alive() and time.monotonic() < until + 2 * QUIET_S:
        samples.append({"at_s": time.monotonic() - began, **sample(operator.process.pid)})
        if samples[-1]["at_s"] - said >= 60:
            said = samples[-1]["at_s"]
            print(f"{said:6.0f} s: {sum(t.done for t in traffic)} jobs, {samples[-1]['rss_kb']} KiB, {samples[-1]['fds']} descriptors", flush=True)
            prune(world)
        time.sleep(EVERY_S)
    wrong = [w for t in traffic for w in t.wrong] + wrong_lives(world, SPACES)
    if not operator.alive():
        return {}, [f"the operator ended with {operator.stop()}: {operator.log()[-3000:]}"]
    samples.append({"at_s": time.monotonic() - began, **sample(operator.process.pid)})
    figures = judge(samples, sum(t.done for t in traffic), wrong)
    code = operator.stop()
    wrong += [f"it ended with {code}"] if code != 0 else []
    wrong += [operator.findings()] if operator.findings() else []
    if wrong:
        print(history(world, wrong[0], [operator]))
    return figures, wrong


def prune(world):
    """The record is of this script's memory, not of the operator's: what is gone and was right is forgotten."""
    with world.record.lock:
        for key, life in list(world.record.lives.items()):
            if life.gone and life.final() is not None and not check_life(life):
                del world.record.lives[key]
                world.record.by_uid.pop(life.uid, None)


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    world = World(ROOT / "build" / "api-server-soak", 6564, 24050)
    try:
        figures, wrong = soak(world, minutes)
    finally:
        world.close()
    out = ROOT / "build" / "bench" / "soak-operator.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"figures": figures, "wrong": wrong}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    for w in wrong:
        print(f"WRONG: {w}")
    return 1 if wrong or not figures else 0


if __name__ == "__main__":
    sys.exit(main())
