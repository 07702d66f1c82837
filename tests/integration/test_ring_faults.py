"""Faults under all-reduces without a pause (tests/chaos/ring_faults.py): a few of each kind; `make test-long` does a hundred."""

import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT

RUNS = 5


@pytest.mark.parametrize("kind", ["trainer", "sidecar", "stop", "link", "quota"])
def test_nothing_hangs_and_nothing_is_wrong(kind, tmp_path, env):
    if os.geteuid() != 0 and kind in ("link", "quota"):
        pytest.skip("network namespaces and cgroups need root")
    figures = tmp_path / "faults.json"
    done = subprocess.run(
        [sys.executable, ROOT / "tests/chaos/ring_faults.py", "--runs", str(RUNS), "--kinds", kind, "--json", figures],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(figures.read_text())["kinds"][kind]
    assert result["runs"] == RUNS
    if kind != "quota":
        assert all(words.startswith("peer lost: rank ") for words in result["words"]), result["words"]
