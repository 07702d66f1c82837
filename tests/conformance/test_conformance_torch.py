"""Every function of ringmaster.torch among 2 and 4 ranks: each check of checks_torch.py is a test, as in test_conformance.py."""

import functools

import pytest
from test_conformance import ROOT, expect_well, names, run

PROGRAM = ROOT / "tests/conformance/checks_torch.py"


@pytest.fixture(scope="module")
def results():
    return functools.lru_cache(functools.partial(run, program=PROGRAM, venv="venv-torch"))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", names(PROGRAM))
def test_conformance(results, ranks, name):
    expect_well(results(ranks), ranks, name)
