"""Worlds of training processes for tests of the client: scripts on each rank, against a FakeJob or alone."""

import json
import subprocess
import textwrap

import pytest

from conftest import ROOT
from fake_sidecar import FakeJob

PRELUDE = """
import json, os, sys, threading, time
import numpy as np
import ringmaster as rm
from ringmaster import checkpoint
rm.init()
rank, size = rm.rank(), rm.size()
def show(**values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture
def make_job(tmp_path):
    jobs = []

    def make(**options):
        directory = tmp_path / f"job-{len(jobs)}"
        directory.mkdir()
        job = FakeJob(directory, **options)
        jobs.append(job)
        return job

    return make


@pytest.fixture
def start(env, client_library, python_path, tmp_path):
    """start(job, script) → one Popen a rank (or `ranks` of them); the script runs after PRELUDE."""
    started = []

    def run(job, script, prelude=PRELUDE, ranks=None, **env_more):
        processes = []
        for rank in range(ranks or (job.size if job else 1)):
            variables = {
                **env,
                **(job.environment(rank) if job else {}),
                "PYTHONPATH": str(ROOT / "client/python"),
                "RINGMASTER_LIBRARY_DIR": str(client_library.parent),
                **env_more,
            }
            processes.append(
                subprocess.Popen(
                    [str(python_path), "-c", prelude + textwrap.dedent(script)],
                    env=variables,
                    cwd=tmp_path,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        started.extend(processes)
        return processes

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def results(start):
    """results(job, script) → what each rank showed last; all must end with 0."""

    def run(job, script, timeout_s=200, **more):
        shown = []
        for process in start(job, script, **more):
            out, err = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, err
            shown.append(json.loads(out.splitlines()[-1]))
        return shown

    return run
