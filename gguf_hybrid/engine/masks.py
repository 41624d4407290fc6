"""Grammar masks, computed beside the forward pass by threads of their own.

The mask of a request's next token depends on the tokens before it alone, so it is begun as soon as
those are known and is usually there before the logits are. One that is late holds up its own
request only: the slot leaves the passes (``Phase.MASK``) until the mask is done.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from .slot import Job

N_THREADS = 2
PATIENCE_SECONDS = 0.005
"""How long a pass waits for a mask while its other rows are done."""
IDLE_SECONDS = 0.05
"""The same when there is nothing else to do; bounds how long a command waits."""


class MaskWorkers:
    """Threads that run ``Sampler.prepare_mask``; they sleep when no request has a grammar."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="mask")

    def begin(self, job: Job) -> None:
        """Compute the mask of the job's next token, if it has a grammar."""
        sampler = job.request.sampler
        job.mask = self._threads.submit(sampler.prepare_mask) if sampler.constraint else None

    def is_ready(self, job: Job) -> bool:
        """Whether the next token can be chosen now, or within ``PATIENCE_SECONDS``."""
        if job.mask is None or job.mask.done():
            return True
        wait([job.mask], PATIENCE_SECONDS)
        return job.mask.done()

    def wait_for_any(self, jobs: Sequence[Job]) -> None:
        """Until one of the late masks is done, or ``IDLE_SECONDS`` have passed."""
        masks: list[Future[None]] = [job.mask for job in jobs if job.mask is not None]
        wait(masks, IDLE_SECONDS, FIRST_COMPLETED)
