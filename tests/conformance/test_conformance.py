"""Every function of the Python core, every dtype, ragged shapes, process sets and error cases, among 2 and 4 ranks: each check of
checks.py is a test, which fails when it failed on any rank.
"""

import functools
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RINGMASTER_BUILD", ROOT / "build")).resolve()
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/integration")]

from group import Group  # noqa: E402

PROGRAM = ROOT / "tests/conformance/checks.py"
LIMIT_S = 900  # of all checks, on a machine that has other things to do


def names(program=PROGRAM):
    spec = importlib.util.spec_from_file_location(program.stem, program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.CHECKS)


def gave_up(group):
    report = group.control.last
    return bool(report and report.get("gave_up"))


def run(ranks, program=PROGRAM, venv="venv"):
    """{check: [what each rank says]}, and the logs."""
    for built in (BUILD / "bin/ringmaster-sidecar", BUILD / "bin/ringmaster-launch", ROOT / "build/client/lib/libringmaster.so"):
        assert built.exists(), f"{built} is not built: run make"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RINGMASTER_", "HOROVOD_"))}
    env.update(PYTHONPATH=str(ROOT / "client/python"), RINGMASTER_LIBRARY_DIR=str(ROOT / "build/client/lib"), PYTHONDONTWRITEBYTECODE="1")
    python = ROOT / "build" / venv / "bin/python"
    commands = {f"worker-{i}": [python, program] for i in range(ranks)}
    group = Group(BUILD / "bin/ringmaster-sidecar", BUILD / "bin/ringmaster-launch", commands, env=env, restart_policy="Never")
    try:
        group.start()
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and not gave_up(group) and any(p.poll() is None for p in group.launchers.values()):
            time.sleep(0.05)
        said = {}
        for member in group.members:
            for line in group.out(member).splitlines():
                entry = json.loads(line)
                said.setdefault(entry["check"], []).append(f"{member}: {entry['why']}" if entry["why"] else "")
        errors = "\n".join((group.dir / member / "err").read_text()[-2000:] for member in group.members)
        return said, errors + group.logs()[-4000:]
    finally:
        group.close()
        shutil.rmtree(group.dir, ignore_errors=True)


def expect_well(results, ranks, name):
    """That every rank came through this check, and well."""
    said, logs = results
    answers = said.get(name, [])
    assert len(answers) == ranks, f"{len(answers)} of {ranks} ranks came through it\n{logs}"
    assert not any(answers), "\n".join(answer for answer in answers if answer)


@pytest.fixture(scope="module")
def results():
    return functools.lru_cache(run)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", names())
def test_conformance(results, ranks, name):
    expect_well(results(ranks), ranks, name)
