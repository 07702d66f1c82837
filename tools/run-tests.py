#!/usr/bin/env python3
"""Builds what the tests need, runs them stage by stage, counts, and ends with one line: `N passed, N failed`.

    tools/run-tests.py [--jobs N] [--only TEXT] [STAGE...]

Without stages: all of DEFAULT. Logs are in build/tests/logs. A stage that ran no case has failed; with CI in the
environment a skipped case has failed too. Exit code 0 only when every case passed.
"""

import argparse
import atexit
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/tests/logs"
IN_CI = bool(os.environ.get("CI"))
TAIL_LINES = 60

DEFAULT = [
    "unit",
    "unit-asan",
    "threads-asan",
    "threads-tsan",
    "fuzz-seeds",
    "integration",
    "conformance",
    "job-tsan",
    "valgrind",
    "demo",
]


@dataclasses.dataclass
class Case:
    """One test program, test function or file, with the counts that it stands for."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    detail: str = ""


@dataclasses.dataclass
class Settings:
    jobs: int
    only: str


class BuildError(Exception):
    pass


def environment(**changes):
    """The caller's environment without what a surrounding make put there."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VARIANT", "BUILD")}
    kept.update(changes)
    return kept


def run(command, log, timeout_s, env=None):
    """Runs a command with its output in a file. Returns (exit code, output); a command that is late has code 124."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env or environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = 124
            out.write(f"\nended: it ran longer than {timeout_s} s\n".encode())
    return code, log.read_text(errors="replace")


def tail(text):
    lines = text.rstrip().splitlines()
    return "\n".join(lines[-TAIL_LINES:])


def build(settings, variant, *targets):
    log = LOGS / f"build-{variant}.log"
    command = ["make", f"-j{settings.jobs}", "--no-print-directory", f"VARIANT={variant}", *targets]
    code, output = run(command, log, 1800)
    if code != 0:
        said = "\n".join(line for line in output.splitlines() if not re.match(r"  (cc|ar|link|zig|copy) ", line))
        raise BuildError(f"{' '.join(command)}: exit code {code}\n{tail(said)}")


def build_dir(variant):
    return ROOT / "build" / ("" if variant == "release" else variant)


def sanitizer_environment(variant, reports):
    """Every finding goes to a file under `reports`, because a leak alone does not change a Criterion program's exit code."""
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    path = reports / "found"
    if variant == "asan":
        return environment(
            ASAN_OPTIONS=f"log_path={path}:detect_leaks=1",
            UBSAN_OPTIONS=f"log_path={path}:print_stacktrace=1:halt_on_error=1",
        )
    if variant == "ubsan":
        return environment(UBSAN_OPTIONS=f"log_path={path}:print_stacktrace=1:halt_on_error=1")
    if variant == "tsan":
        return environment(TSAN_OPTIONS=f"log_path={path}:exitcode=66:second_deadlock_stack=1")
    return environment()


def sanitizer_findings(reports):
    return "\n".join(p.read_text(errors="replace") for p in sorted(reports.glob("found*")))


def for_each(settings, items, function):
    with concurrent.futures.ThreadPoolExecutor(settings.jobs) as pool:
        return list(pool.map(function, items))


def programs(settings, variant, pattern):
    """Programs of the sources that match, as paths in the variant's build directory; from the sources, so that none is lost."""
    found = []
    for source in sorted(ROOT.glob(pattern)):
        program = build_dir(variant) / source.relative_to(ROOT).with_suffix("")
        if settings.only in str(program):
            found.append(program)
    return found


# ---- unit ------------------------------------------------------------------------------------------------------------

SYNTHESIS = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)")


def criterion(program, variant):
    name = str(program.relative_to(build_dir(variant) / "tests/unit"))
    stem = f"{variant}-{name.replace('/', '-')}"
    reports = LOGS / "sanitizer" / stem
    env = sanitizer_environment(variant, reports)
    code, output = run([str(program), "-j1"], LOGS / f"unit-{stem}.log", 900, env)
    case = Case(name)
    counts = SYNTHESIS.search(re.sub(r"\x1b\[[0-9;]*m", "", output))
    if counts:
        tested, case.passed = int(counts[1]), int(counts[2])
        case.failed = tested - case.passed
    findings = sanitizer_findings(reports)
    if not counts or not case.passed + case.failed:
        case.failed, case.detail = max(case.failed, 1), f"exit code {code}, and it ran no test\n{tail(output)}"
    elif findings:
        case.failed, case.detail = max(case.failed, 1), tail(findings)
    elif case.failed or code != 0:
        case.failed, case.detail = max(case.failed, 1), tail(output)
    return case


def unit(settings, variant):
    build(settings, variant, "unit-programs")
    return for_each(settings, programs(settings, variant, "tests/unit/*/test_*.c"), lambda p: criterion(p, variant))


# ---- threads ---------------------------------------------------------------------------------------------------------


def thread_program(program, variant):
    reports = LOGS / "sanitizer" / f"{variant}-thread-{program.name}"
    env = sanitizer_environment(variant, reports)
    code, output = run([str(program)], LOGS / f"threads-{variant}-{program.name}.log", 1200, env)
    findings = sanitizer_findings(reports)
    if code == 0 and not findings:
        return Case(program.name, passed=1)
    return Case(program.name, failed=1, detail=f"exit code {code}\n{tail(findings or output)}")


def threads(settings, variant):
    build(settings, variant, "tsan-programs")
    # One at a time: what they look for shows best when the threads really run side by side.
    return [thread_program(p, variant) for p in programs(settings, variant, "tests/tsan/*.c")]


# ---- fuzz seeds --------------------------------------------------------------------------------------------------------


def fuzz_target(program):
    target = program.name.removeprefix("fuzz_")
    seeds = sorted(p for p in (ROOT / "tests/fuzz/corpus" / target).glob("*") if p.is_file())
    if not seeds:
        return Case(target, failed=1, detail=f"tests/fuzz/corpus/{target} holds no seed")
    reports = LOGS / "sanitizer" / f"fuzz-{target}"
    env = sanitizer_environment("asan", reports)
    code, output = run([str(program), *map(str, seeds)], LOGS / f"fuzz-{target}.log", 600, env)
    ok = sum(line.endswith(" ok") for line in output.splitlines())
    case = Case(target, passed=min(ok, len(seeds)), failed=len(seeds) - min(ok, len(seeds)))
    findings = sanitizer_findings(reports)
    if code != 0 or findings or case.failed:
        case.failed = max(case.failed, 1)
        case.detail = f"exit code {code}\n{tail(findings or output)}"
    return case


def fuzz_seeds(settings):
    build(settings, "asan", "fuzz-programs")
    return for_each(settings, programs(settings, "asan", "tests/fuzz/fuzz_*.c"), fuzz_target)


# ---- integration -------------------------------------------------------------------------------------------------------


def integration(settings, variant, directory="integration"):
    build(settings, "release", "all", "test-programs", "deps-torch", "deps-s3")
    if variant != "release":
        build(settings, variant, "programs", "test-programs")
    reports = LOGS / "sanitizer" / f"{directory}-{variant}"
    env = sanitizer_environment(variant, reports)
    env["RINGMASTER_BUILD"] = str(build_dir(variant))
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    result = LOGS / f"{directory}-{variant}.xml"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=15", f"--junitxml={result}"]
    if settings.only:
        command += ["-k", settings.only]
    code, output = run([*command, f"tests/{directory}"], LOGS / f"{directory}-{variant}.log", 3600, env)
    cases = junit_cases(result)
    if not cases or (code != 0 and not any(c.failed for c in cases)):
        cases.append(Case("pytest", failed=1, detail=f"exit code {code}\n{tail(output)}"))
    findings = sanitizer_findings(reports)
    if findings:
        cases.append(Case("sanitizer", failed=1, detail=tail(findings)))
    return cases


def junit_cases(path):
    if not path.exists():
        return []
    cases = []
    for node in xml.etree.ElementTree.parse(path).iter("testcase"):
        case = Case(f"{node.get('classname', '').split('.')[-1]}::{node.get('name')}")
        trouble = node.find("failure") if node.find("failure") is not None else node.find("error")
        if trouble is not None:
            case.failed, case.detail = 1, tail(trouble.text or trouble.get("message") or "")
        elif node.find("skipped") is not None:
            case.skipped, case.detail = 1, node.find("skipped").get("message") or ""
        else:
            case.passed = 1
        cases.append(case)
    return cases


# ---- a real Kubernetes ---------------------------------------------------------------------------------------------------

CLUSTER = [sys.executable, "tests/cluster/cluster.py"]
cluster_binaries = None  # the build of the cluster's programs, when there is one


def begin_cluster_binaries():
    """Kubernetes takes minutes to build, the first time: with what the other stages leave of the processors."""
    global cluster_binaries
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / "cluster-binaries.log", "wb") as log:
        cluster_binaries = subprocess.Popen(
            ["nice", "-n", "19", *CLUSTER, "binaries"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end_cluster_binaries():
    """Whatever happened: nothing goes on in the background."""
    if cluster_binaries is not None and cluster_binaries.poll() is None:
        os.killpg(cluster_binaries.pid, 15)
        cluster_binaries.wait()


# Those that need the nodes, and those whose API servers are their own: side by side, because most of both is waiting.
CLUSTER_LANES = {"nodes": "nodes", "servers": "not nodes"}


def cluster_lane(settings, lane):
    result = LOGS / f"cluster-{lane}.xml"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--durations=25", f"--junitxml={result}"]
    command += ["-m", CLUSTER_LANES[lane], "tests/cluster"]
    if settings.only:
        command += ["-k", settings.only]
    code, output = run(command, LOGS / f"cluster-{lane}.log", 2700, environment(PYTHONDONTWRITEBYTECODE="1"))
    cases = junit_cases(result)
    nothing_to_do = settings.only and code == 5
    if not nothing_to_do and (not cases or (code != 0 and not any(c.failed for c in cases))):
        cases.append(Case(f"pytest {lane}", failed=1, detail=f"exit code {code}\n{tail(output)}"))
    return cases, output


def cluster(settings):
    is_root = os.geteuid() == 0
    build(settings, "release", *(["deps-cluster"] if is_root else []), "all", "build/tests/cluster/kube_client_check")
    if cluster_binaries is None:
        begin_cluster_binaries()
    if cluster_binaries.wait() != 0:
        raise BuildError(f"the test cluster's programs\n{tail((LOGS / 'cluster-binaries.log').read_text(errors='replace'))}")
    was_up = (ROOT / "build/cluster/processes/kube-apiserver").exists()
    with concurrent.futures.ThreadPoolExecutor(len(CLUSTER_LANES)) as pool:
        lanes = list(pool.map(lambda lane: cluster_lane(settings, lane), CLUSTER_LANES if is_root else ["servers"]))
    cases = [case for found, _ in lanes for case in found]
    if not is_root:
        why = "nodes need namespaces and cgroups of their own: run it as root (sudo make test-cluster)"
        cases.append(Case("nodes", skipped=1, detail=why))
    if any(c.failed for c in cases) and not was_up and not os.environ.get("CLUSTER_KEEP"):
        run([*CLUSTER, "down"], LOGS / "cluster-down.log", 120)
    for _, output in lanes:
        for line in re.findall(r"^  .* p50 .*$", output, re.M):
            print(line)
    return cases


# ---- whole jobs under a checker ----------------------------------------------------------------------------------------


def checked_job(settings, variant):
    build(settings, "release", "client")
    build(settings, variant, "programs", "test-programs")
    result = LOGS / f"job-{variant}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "tools/checked-job.py", variant, str(result)]
    code, output = run(command, LOGS / f"job-{variant}.log", 1500)
    return json_cases(result, code, output)


def json_cases(path, code, output):
    """Cases that a script left as [{"name", "ok", "detail"}]."""
    rows = json.loads(path.read_text()) if path.exists() else []
    cases = [Case(r["name"], passed=int(r["ok"]), failed=int(not r["ok"]), detail=r["detail"]) for r in rows]
    if not cases or (code != 0 and not any(c.failed for c in cases)):
        cases.append(Case("script", failed=1, detail=f"exit code {code}\n{tail(output)}"))
    return cases


# ---- demo --------------------------------------------------------------------------------------------------------------


def demo(settings):
    build(settings, "release", "all")
    code, output = run(["examples/digits/demo.sh"], LOGS / "demo.log", 1800)
    cases = [Case("demo.sh", passed=int(code == 0), failed=int(code != 0), detail="" if code == 0 else tail(output))]
    for verdict, name, found in re.findall(r"^  (ok |BAD) (\w+ = (.*))$", output, re.M):
        ok = verdict == "ok "
        cases.append(Case(name.split(" ")[0], passed=int(ok), failed=int(not ok), detail="" if ok else found))
    html = ROOT / "build/demo/report.html"
    ok = html.exists() and html.stat().st_size > 1000
    cases.append(Case("report.html", passed=int(ok), failed=int(not ok), detail="" if ok else f"{html} is missing or empty"))
    return cases


# ---- the whole ---------------------------------------------------------------------------------------------------------

STAGES = {
    "unit": lambda s: unit(s, "release"),
    "unit-asan": lambda s: unit(s, "asan"),
    "unit-ubsan": lambda s: unit(s, "ubsan"),
    "threads-asan": lambda s: threads(s, "asan"),
    "threads-tsan": lambda s: threads(s, "tsan"),
    "fuzz-seeds": fuzz_seeds,
    "integration": lambda s: integration(s, "release"),
    "integration-asan": lambda s: integration(s, "asan"),
    "conformance": lambda s: integration(s, "release", "conformance"),
    "job-tsan": lambda s: checked_job(s, "tsan"),
    "valgrind": lambda s: checked_job(s, "valgrind"),
    "demo": demo,
    "cluster": cluster,
}


def run_stage(name, settings):
    try:
        cases = STAGES[name](settings)
    except BuildError as e:
        cases = [Case("build", failed=1, detail=str(e))]
    if not any(c.passed or c.failed or c.skipped for c in cases):
        cases = [Case("no case", failed=1, detail="this stage found nothing to run")]
    for case in cases:
        if IN_CI and case.skipped:
            case.failed += case.skipped
            case.skipped = 0
            case.detail = f"skipped, which counts as failed in CI: {case.detail}"
    return cases


def report_failures(stage, cases):
    for case in cases:
        if case.failed:
            print(f"  FAILED {stage}: {case.name}")
            for line in case.detail.splitlines():
                print(f"      {line}")
        elif case.skipped:
            print(f"  skipped {stage}: {case.name}: {case.detail}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="programs whose path contains TEXT; for integration pytest's -k")
    parser.add_argument("stage", nargs="*", metavar="STAGE", help=f"any of {', '.join(STAGES)}")
    args = parser.parse_args()
    for name in args.stage:
        if name not in STAGES:
            parser.error(f"no stage {name}; there are {', '.join(STAGES)}")
    settings = Settings(jobs=max(args.jobs, 1), only=args.only)

    rows = []
    began = time.monotonic()
    stages = args.stage or DEFAULT
    if "cluster" in stages:
        begin_cluster_binaries()
        atexit.register(end_cluster_binaries)
    for name in stages:
        print(f"== {name}", flush=True)
        at = time.monotonic()
        cases = run_stage(name, settings)
        report_failures(name, cases)
        rows.append((name, *(sum(getattr(c, k) for c in cases) for k in ("passed", "failed", "skipped")), time.monotonic() - at))

    print(f"\n{'stage':<18}{'cases':>8}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for name, passed, failed, skipped, seconds in rows:
        print(f"{name:<18}{passed + failed + skipped:>8}{passed:>8}{failed:>8}{skipped:>9}{seconds:>9.1f}")
    passed, failed, skipped = (sum(r[i] for r in rows) for i in (1, 2, 3))
    print(f"{'all':<18}{passed + failed + skipped:>8}{passed:>8}{failed:>8}{skipped:>9}{time.monotonic() - began:>9.1f}")
    print(f"logs: {LOGS.relative_to(ROOT)}\n")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
