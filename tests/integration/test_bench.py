"""`ringmaster bench allreduce`: a job of its own that measures the ring."""

import subprocess

import pytest
from conftest import BUILD, PATIENCE_S


@pytest.mark.parametrize("flags", [[], ["--dtype", "bfloat16", "--redop", "average"], ["--dtype", "uint8", "--redop", "max", "--arena"]])
def test_every_element_is_compared(flags):
    done = subprocess.run([BUILD / "bin/ringmaster", "bench", "allreduce", "--ranks", "3", "--min", "8", "--max", "2Mi", "--factor", "64",
                           "--iterations", "3", *flags], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line[:12].strip().isdigit()]
    assert [int(fields[0]) for fields in rows] == [8, 512, 32768, 2097152]
    for fields in rows:
        assert fields[7] == "0"
        assert float(fields[4]) > 0


def test_what_is_to_be_measured_has_to_be_said():
    done = subprocess.run([BUILD / "bin/ringmaster", "bench"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "ringmaster bench allreduce" in done.stderr
