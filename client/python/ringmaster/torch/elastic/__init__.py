"""Elastic training with torch: a loss of ranks does not end this process; see ringmaster.elastic.

    state = elastic.TorchState(model, optimizer, batch=0, sampler=sampler)

    @elastic.run
    def train(state):
        ...
            state.commit()

    train(state)
"""

from typing import Any, Callable

from ...elastic import run as _run
from .sampler import ElasticSampler
from .state import TorchState


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function's first argument is a TorchState; it is called again in each new round, from the last commit."""
    return _run(func)


__all__ = ["ElasticSampler", "TorchState", "run"]
