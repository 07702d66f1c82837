"""When a checkpoint is due, and saves that do not stop training: what the Checkpoint classes of torch and Keras have in common."""

import logging
import time
from typing import Callable, Optional, Tuple, Type

import numpy as np

from . import _basics, _core, _ops, checkpoint

log = logging.getLogger("ringmaster")


class Cadence:
    """Ranks save at steps that all of them agree on, although time passes differently for each and the job asks one of them.

    Args:
        every_steps, every_seconds, agree_every: as in Checkpoint.

    Raises:
        ValueError: a number that cannot be.
    """

    def __init__(self, every_steps: Optional[int], every_seconds: Optional[float], agree_every: int):
        if every_steps is None:
            every_steps = int(_basics.environment_number("RINGMASTER_CHECKPOINT_EVERY_STEPS") or 0)
        if every_seconds is None:
            every_seconds = _basics.environment_number("RINGMASTER_CHECKPOINT_EVERY_SECONDS") or 0.0
        if every_steps < 0 or every_seconds < 0 or agree_every < 1:
            raise ValueError("every_steps and every_seconds must not be negative, agree_every must be positive")
        self.every_steps, self.every_seconds, self.agree_every = every_steps, every_seconds, agree_every
        self._last_step = -1
        self._last_save = time.monotonic()
        self._complained = ""

    def begin(self, restored_step: Optional[int] = None) -> None:
        """Training begins, or goes back to this step: time counts from now."""
        self._last_save = time.monotonic()
        if restored_step is not None:
            self._last_step = restored_step

    def _agreed(self, step: int) -> bool:
        """Whether any rank thinks that it is time; asked at the same steps on all ranks."""
        if not checkpoint.available() or step % self.agree_every != 0:
            return False
        due = checkpoint.wanted() or 0 < self.every_seconds <= time.monotonic() - self._last_save
        return bool(_ops.allreduce(np.array([due], np.uint8), name="checkpoint.due", op=_basics.Max)[0])

    def due(self, step: int) -> bool:
        """Whether this step is to be saved. Every rank asks after every step."""
        by_steps = self.every_steps > 0 and step % self.every_steps == 0
        agreed = self._agreed(step)  # on every rank, whatever by_steps says
        return (by_steps or agreed) and step != self._last_step

    def save(self, step: int, save: Callable[[], bool], passed_on: Tuple[Type[Exception], ...] = (_core.PeerLostError,)) -> bool:
        """Calls save(). What the sidecar says against it is logged, once for each text, but for errors that are to be passed on.

        Returns:
            What save() returns; False when it failed.
        """
        self._last_step, self._last_save = step, time.monotonic()
        try:
            return save()
        except passed_on:
            raise
        except _core.RingmasterError as error:
            if str(error) != self._complained:
                log.warning("checkpoint of step %d is not saved, training goes on: %s", step, error)
            self._complained = str(error)
            return False
