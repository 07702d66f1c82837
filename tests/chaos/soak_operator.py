#!/usr/bin/env python3
"""Soak: one operator under steady job churn for N minutes (default 30), with memory and descriptors measured all the while.

    build/venv/bin/python tests/chaos/soak_operator.py [MINUTES]

Jobs of every kind (tests/cluster/traffic.py) are made and end as they must, against a real API server with pods that a thread moves
through their phases. It fails when a job comes to a wrong end, the operator restarts, a thread or a descriptor is left, or memory
grows: a straight line through the last two thirds may rise by no more than a few hundred bytes a job, of what the program holds (a leak is
that and nothing else) as of the whole process, and the process may not become large. Figures in build/bench/soak-operator.json. VARIANT
as for the tests.
"""

import itertools
import json
import os
import pathlib
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from fault_world import VARIANT, Operator, World, check_life  # noqa: E402
from traffic import QUIET_S, Traffic, history, wrong_lives  # noqa: E402

SPACES = ("soak-a", "soak-b")
DRIVERS = 4
EVERY_S = 2.0
PORT = 18095
HELD_KB_PER_1000_JOBS = 100   # of what malloc was asked for; a job's own state is thirty times that
RSS_KB_PER_1000_JOBS = 400    # of the process: pages that are partly free differ from one minute to the next
NOISE_KB = {"heap_kb": 256, "rss_kb": 384}  # a rise that is no more than this in all is none: two looks more were under way
RSS_MAX_KB = 20 << 10


def sample(operator, done):
    pid = operator.process.pid
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    ticks = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return {"rss_kb": int(status["VmRSS"].split()[0]), "fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(status["Threads"]),
            "cpu_s": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), "jobs": done,
            "heap_kb": metric("heap_bytes") / 1024, "free_kb": metric("heap_free_bytes") / 1024, "remembered": metric("jobs_remembered")}


def metric(name):
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=20) as answer:
        return next(float(line.split()[1]) for line in answer.read().decode().splitlines() if line.startswith(f"ringmaster_{name} "))


def slope(points):
    """Least squares, y per x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def growth(samples, key):
    """KiB per 1000 jobs, and KiB in all, along the line through the last two thirds; of the lowest in each ten, because work under way comes
    and goes."""
    settled = samples[len(samples) // 3:]
    calm = [min(settled[i:i + 10], key=lambda s: s[key]) for i in range(0, len(settled), 10)]
    rise = slope([(s["jobs"], s[key]) for s in calm])
    return 1000 * rise, rise * (calm[-1]["jobs"] - calm[0]["jobs"])


def judge(samples, wrong):
    """The figures, and what is wrong with them."""
    first, last = samples[0], samples[-1]
    figures = {"jobs": last["jobs"], "seconds": round(last["at_s"]), "cpu_ms_per_job": round(1000 * last["cpu_s"] / max(last["jobs"], 1), 2)}
    for key, limit in (("heap_kb", HELD_KB_PER_1000_JOBS), ("rss_kb", RSS_KB_PER_1000_JOBS)):
        per_1000, rise = growth(samples, key)
        figures.update({f"{key} first": round(first[key]), f"{key} last": round(last[key]), f"{key} max": round(max(s[key] for s in samples)),
                        f"{key} per 1000 jobs": round(per_1000), f"{key} rise in all": round(rise)})
        if per_1000 > limit and rise > NOISE_KB[key] and VARIANT == "release":
            wrong.append(f"{key} grows by {per_1000:.0f} KiB for 1000 jobs, {rise:.0f} KiB in all; {limit} would be bearable")
    figures.update({"fds first": first["fds"], "fds last": last["fds"], "fds max": max(s["fds"] for s in samples), "jobs remembered": last["remembered"]})
    if figures["rss_kb max"] > RSS_MAX_KB and VARIANT == "release":
        wrong.append(f"the process takes {figures['rss_kb max']} KiB")
    if last["fds"] > first["fds"] + 4:
        wrong.append(f"{last['fds']} descriptors are open in the end, {first['fds']} were in the beginning")
    if len({s["threads"] for s in samples}) > 1:
        wrong.append(f"threads come and go: {sorted({s['threads'] for s in samples})}")
    if last["remembered"] > 0:
        wrong.append(f"{last['remembered']:.0f} jobs are remembered when none is there any more")
    return figures


def soak(world, minutes):
    operator = Operator(world.server.kubeconfig, world.logs / "operator.log", "--namespaces", ",".join(world.namespace(s) for s in SPACES),
                        "--leader-elect=false", "--log-level", "warn", "--listen", f"127.0.0.1:{PORT}").start()
    time.sleep(3)
    began, samples = time.monotonic(), []
    until, counter = began + 60 * minutes, itertools.count()
    traffic = [Traffic(world, ns, until, counter) for ns in SPACES for _ in range(DRIVERS)]
    said = 0.0
    while any(t.thread.is_alive() for t in traffic) and operator.alive() and time.monotonic() < until + 2 * QUIET_S:
        samples.append({"at_s": time.monotonic() - began, **sample(operator, sum(t.done for t in traffic))})
        if samples[-1]["at_s"] - said >= 60:
            said = samples[-1]["at_s"]
            print(f"{said:6.0f} s: {samples[-1]['jobs']} jobs, {samples[-1]['rss_kb']} KiB, of them {samples[-1]['heap_kb']:.0f} held and "
                  f"{samples[-1]['free_kb']:.0f} free, {samples[-1]['remembered']:.0f} jobs remembered, {samples[-1]['fds']} descriptors", flush=True)
            prune(world)
        time.sleep(EVERY_S)
    wrong = [w for t in traffic for w in t.wrong] + wrong_lives(world, SPACES)
    if not operator.alive():
        return {}, [f"the operator ended with {operator.stop()}: {operator.log()[-3000:]}"]
    time.sleep(3)  # the watch has told of the last deletions
    samples.append({"at_s": time.monotonic() - began, **sample(operator, sum(t.done for t in traffic))})
    figures = judge(samples, wrong)
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
