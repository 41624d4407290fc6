"""Requests in, events out: each ``step`` admits, runs one pass (``passes``) and settles its rows.

Used from one thread only. Sampler, text reader and cuts are the request's own, so no row sees its
neighbours.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gguf_hybrid.backend.base import GIVEN, Picked
from gguf_hybrid.errors import ContextOverflowError, RequestError, StepError
from gguf_hybrid.memory.hybrid import HybridMemory
from gguf_hybrid.memory.sequence_file import SavedSequence
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.sampling.chain import Sampled

from .admission import Admission, Admitted
from .cache import PromptCache
from .contents import Contents, Reuse
from .flight import Flight, Model, Planned
from .masks import MaskWorkers
from .options import EngineOptions
from .passes import Passes, as_step_error
from .request import Counters, Embedded, Event, Failed, Progress, Request, SlotView, Started, Token
from .scheduler import Scheduler
from .slot import Job, Phase, Slot, done_event
from .stop import stop_after_token

logger = logging.getLogger(__name__)


class Engine:
    """The slots of one model. ``clock`` gives seconds."""

    def __init__(
        self,
        model: Model,
        options: EngineOptions,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        sizes = options.memory_sizes()
        self.options = options
        self.limits = options.limits
        self.memory = HybridMemory(model.new_store(sizes.store_spec(options.layout.kv_type)), sizes)
        self.cache = PromptCache(self.memory, options.cache_ram_nbytes, options.ctx_checkpoints)
        self.slots = [Slot(i, self.limits.n_ctx) for i in range(self.limits.n_slots)]
        self.contents = Contents(self.memory, self.cache, self.slots)
        self.counters = Counters()
        self._clock = clock
        self._admission = Admission(self.slots, options.slot_prompt_similarity)
        self._scheduler = Scheduler(options.n_ubatch, options.pace)
        self._passes = Passes(model, self.contents, options.pace, clock, self)
        self._masks = MaskWorkers()
        self._slot_actions: list[tuple[int, Callable[[], None]]] = []
        self._events: list[Event] = []
        self._n_released = 0
        if options.parks_idle_slots:
            logger.debug("__TEST_TAG_CACHE_IDLE_SLOTS_ENABLED__")

    # -- from outside -------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Requests of one task. With several, all have the prompt of the first.

        What can never be served becomes ``Failed`` events of the next step.
        """
        assert all(request.pooling is None or not request.cache_prompt for request in requests)
        error = self._refusal(requests)
        if error is None:
            self._admission.add(requests)
        else:
            self._events.extend(Failed(request.id, error) for request in requests)

    def _refusal(self, requests: Sequence[Request]) -> RequestError | None:
        n_prompt, pooling = len(requests[0].prompt), requests[0].pooling
        if n_prompt == 0:
            return RequestError("the prompt is empty")
        if pooling and not pooling.takes_any_length and n_prompt > self.options.n_ubatch:
            return StepError(
                f"input ({n_prompt} tokens) is too large to process. increase the physical batch"
                f" size (current batch size: {self.options.n_ubatch})"
            )
        if n_prompt >= self.limits.n_ctx:
            return ContextOverflowError(n_prompt, self.limits.n_ctx)
        if len(requests) > len(self.slots):
            return RequestError(f"n is {len(requests)}, but there are {len(self.slots)} slots")
        return None

    def cancel(self, request_id: int) -> None:
        """Forget a request, waiting or running; it gets no more events. Unknown ids are ignored,
        as the request may just have ended."""
        if self._admission.remove(request_id):
            return
        for slot in self.slots:
            if slot.job is not None and slot.job.request.id == request_id:
                self._release(slot)

    def when_idle(self, id_slot: int, action: Callable[[], None]) -> None:
        """Run ``action`` between steps as soon as the slot is free, before waiting requests."""
        self._slot_actions.append((id_slot % len(self.slots), action))

    def save_slot(self, id_slot: int) -> SavedSequence:
        """What an idle slot holds, copied to the host. Slot ids wrap, as in llama-server."""
        return self.contents.save(self._idle_slot(id_slot))

    def load_slot(self, id_slot: int, saved: SavedSequence) -> bool:
        """Put a saved sequence into an idle slot; False, with nothing changed, if it won't fit."""
        return self.contents.load(self._idle_slot(id_slot), saved)

    def erase_slot(self, id_slot: int) -> int:
        """Forget what an idle slot holds; how many tokens that was."""
        return self.contents.erase(self._idle_slot(id_slot))

    def _idle_slot(self, id_slot: int) -> Slot:
        slot = self.slots[id_slot % len(self.slots)]
        assert slot.is_idle
        return slot

    @property
    def is_busy(self) -> bool:
        """Whether ``step`` has anything to do."""
        waits = bool(self._events or self._slot_actions or len(self._admission))
        return waits or any(not slot.is_idle for slot in self.slots)

    def step(self) -> list[Event]:
        """Admit what can start and run one pass. Returns what happened, in order."""
        self.admit()
        self.run_pass()
        return self.take_events()

    def admit(self) -> None:
        """Start waiting tasks as far as slots are free."""
        self._run_slot_actions()
        while (admitted := self._admission.next()) is not None:
            self._start(admitted)
        self._count_requests()

    def run_pass(self) -> None:
        """One forward pass over all slots that have something to do. Where the device chooses the
        tokens, the next one is launched before this one's results are looked at."""
        self._choose_late_tokens()
        if self._passes.run(lambda: self._scheduler.next_pass(self.slots)):
            self.cache.trim()
        elif late := self._late_jobs():
            self._masks.wait_for_any(late)
        self._count_requests()

    def take_events(self) -> list[Event]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def views(self) -> tuple[SlotView, ...]:
        """What ``/slots`` shows now."""
        return tuple(slot.view(self.options.slots_debug) for slot in self.slots)

    def _run_slot_actions(self) -> None:
        ready = [item for item in self._slot_actions if self.slots[item[0]].is_idle]
        self._slot_actions = [item for item in self._slot_actions if item not in ready]
        for _, action in ready:
            action()

    def can_admit(self) -> bool:
        """Whether somebody waits and a slot may be free for them."""
        waits = bool(len(self._admission) or self._slot_actions)
        return waits and any(slot.is_idle for slot in self.slots)

    def _count_requests(self) -> None:
        self.counters.requests_deferred = len(self._admission)
        self.counters.requests_processing = sum(not slot.is_idle for slot in self.slots)

    # -- starting and ending ------------------------------------------------------------------

    def _start(self, admitted: Admitted) -> None:
        first, *followers = admitted.slots
        now = self._clock()
        if self.options.parks_idle_slots:
            self.contents.park_idle(admitted.slots)
        job = first.begin(admitted.requests[0], now, self.options.checkpoint_step, followers)
        for slot, request in zip(followers, admitted.requests[1:], strict=True):
            self.contents.displace(slot)
            slot.follow(job, request)
        for slot, request in zip(admitted.slots, admitted.requests, strict=True):
            self._events.append(Started(request.id, slot.id, slot.n_ctx))
        reuse = self.contents.reuse(first, job.request)
        first.note_owner(job.request)
        job.timings.cache_n = len(first.tokens)
        self._count_reuse(reuse, job)
        self._report_progress(job)
        for slot in admitted.slots:
            self._show_prompt_to_sampler(slot)

    def _count_reuse(self, reuse: Reuse, job: Job) -> None:
        n_cached = job.timings.cache_n
        job.n_restored = reuse.n_restored
        job.n_reread = max(min(reuse.n_known, job.n_prompt - 1) - n_cached, 0)
        self.counters.prompt_tokens_cached += n_cached
        self.counters.prompt_tokens_restored += job.n_restored
        self.counters.prompt_tokens_reread += job.n_reread

    def _show_prompt_to_sampler(self, slot: Slot) -> None:
        assert slot.job is not None
        request = slot.job.request
        try:
            request.sampler.accept_prompt(request.prompt)
        except Exception as error:
            self.fail(slot, as_step_error("sampler", error))
        else:
            self._masks.begin(slot.job)

    def _release(self, slot: Slot) -> Job:
        """The slot is free again and keeps its tokens; those of an embedding serve nobody."""
        self._n_released += 1
        job = slot.release(self._n_released)
        self._passes.drop(slot)
        if job.vectors is not None:
            self.contents.clear(slot)
        self.counters.tokens_predicted += job.timings.predicted_n
        self.counters.tokens_predicted_timed += max(job.timings.predicted_n - 1, 0)
        self.counters.tokens_predicted_seconds += job.timings.predicted_ms / 1000
        for follower in job.waiting_followers():
            self.fail(follower, StepError("the request that read the prompt has ended"))
        return job

    def fail(self, slot: Slot, error: RequestError) -> None:
        """End the slot's request with an error. Its sequence is not trusted any more."""
        assert slot.job is not None
        for follower in slot.job.waiting_followers():
            self.fail(follower, error)
        self._events.append(Failed(slot.job.request.id, error))
        self._release(slot)
        self.contents.clear(slot)

    # -- one pass -----------------------------------------------------------------------------

    def settle(self, flight: Flight, picked: Picked) -> None:
        """Rows are committed: move slots on, keep checkpoints, sample; late grammars last."""
        at = 0
        late: list[tuple[Slot, Floats]] = []
        for i, (item, row) in enumerate(flight.planned):
            slot, chosen = item.slot, flight.choices[i] is not None
            n_logits = 0 if chosen else row.n_logits
            if i in flight.dropped:
                at += n_logits
                continue
            fed = row.tokens if flight.sources[i] == GIVEN else slot.next_token()
            slot.tokens.extend(fed.tolist())
            self.counters.n_tokens_max = max(self.counters.n_tokens_max, len(slot.tokens))
            if item.is_prompt:
                self._settle_prompt(slot, len(row))
            if chosen:
                self._accept_choice(slot, picked.tokens[i])
            elif n_logits:
                for sampling in self._sampling_slots(slot):
                    if sampling.job and sampling.job.mask and not sampling.job.mask.done():
                        late.append((sampling, picked.logits[at]))
                    else:
                        self._sample(sampling, picked.logits[at])
            at += n_logits
        for slot, row_logits in late:
            self._sample_late(slot, row_logits)

    def _sample_late(self, slot: Slot, logits: Floats) -> None:
        """The grammar's mask was not there in time: wait a little, then let the others go on."""
        assert slot.job is not None
        if self._masks.is_ready(slot.job):
            self._sample(slot, logits)
        else:
            slot.job.late_logits = logits.copy()
            slot.job.phase = Phase.MASK

    def _late_jobs(self) -> list[Job]:
        return [s.job for s in self.slots if s.job is not None and s.job.phase is Phase.MASK]

    def _choose_late_tokens(self) -> None:
        """Slots whose mask has come are back in the passes."""
        for slot in self.slots:
            job = slot.job
            if job is None or job.phase is not Phase.MASK or (job.mask and not job.mask.done()):
                continue
            logits, job.late_logits = job.late_logits, None
            assert logits is not None
            job.phase = Phase.DECODE
            self._sample(slot, logits)

    def settle_embeddings(self, planned: Planned, hidden: Floats) -> None:
        """Rows are committed: gather their hidden states; those that are complete are given out."""
        at = 0
        for item, row in planned:
            slot, job = item.slot, item.slot.job
            assert job is not None and job.vectors is not None
            slot.tokens.extend(row.tokens.tolist())
            self._settle_prompt(slot, len(row))
            job.vectors.add(hidden[at : at + len(row)])
            at += len(row)
            if row.end == job.n_prompt:
                self._give_out(slot, job.request.id, job.vectors.pooled())

    def _give_out(self, slot: Slot, request_id: int, vectors: Floats) -> None:
        if not np.isfinite(vectors).all():
            self.fail(slot, StepError("the model produced hidden states that are not finite"))
            return
        job = self._release(slot)
        self.counters.prompt_seconds += self._clock() - job.started
        self._events.append(Embedded(request_id, slot.id, vectors, job.n_prompt))

    def _settle_prompt(self, slot: Slot, n_tokens: int) -> None:
        job = slot.job
        assert job is not None
        job.timings.prompt_n += n_tokens
        self.counters.prompt_tokens += n_tokens
        self._report_progress(job)
        n_read = len(slot.tokens)
        if job.request.cache_prompt and n_read in job.cuts and n_read < job.n_prompt:
            self.cache.checkpoint(slot.id, slot.tokens)

    def _report_progress(self, job: Job) -> None:
        request, timings = job.request, job.timings
        if request.return_progress:
            ms = 1000 * (self._clock() - job.started)
            n_read = timings.cache_n + timings.prompt_n
            so_far = replace(timings, prompt_ms=ms if timings.prompt_n else 0.0)
            event = Progress(request.id, job.n_prompt, timings.cache_n, n_read, int(ms), so_far)
            self._events.append(event)

    def _sampling_slots(self, slot: Slot) -> list[Slot]:
        """The slots whose next token these logits decide: the row's, and, when it has just read
        its prompt, those that waited to copy it."""
        job = slot.job
        assert job is not None
        if job.phase is Phase.DECODE:
            return [slot]
        job.phase = Phase.DECODE
        self.counters.prompt_seconds += self._clock() - job.started
        return [slot, *filter(lambda to: self._copy_prompt(slot, to), job.waiting_followers())]

    def _copy_prompt(self, slot: Slot, follower: Slot) -> bool:
        """False, and the follower's request has failed, if there is no memory for it."""
        try:
            self.contents.copy_prompt(slot, follower)
        except MemoryError as error:
            self.fail(follower, as_step_error("copy of the prompt", error))
            return False
        return True

    def _sample(self, slot: Slot, logits: Floats) -> None:
        job = slot.job
        assert job is not None

        def sample() -> Sampled:
            if job.mask is not None:
                job.mask.result()
            sampled = job.request.sampler.sample(logits)
            job.request.sampler.accept(sampled.id)
            return sampled

        self._go_on(slot, job, sample)

    def _accept_choice(self, slot: Slot, token: int) -> None:
        """The device's; -1: it could not choose."""
        job = slot.job
        assert job is not None

        def accept() -> Sampled:
            if token < 0:
                raise StepError("the model produced logits that are not finite")
            job.request.sampler.accept_choice(token)
            return Sampled(token)

        self._go_on(slot, job, accept)

    def _go_on(self, slot: Slot, job: Job, sample: Callable[[], Sampled]) -> None:
        """With the next token, to the next pass or to the end."""
        request = job.request
        try:
            sampled = sample()
            is_eog = sampled.id in self.options.eog_ids
            piece = request.reader.push(sampled.id, is_eog)
        except Exception as error:
            self.fail(slot, as_step_error("sampler", error))
            return
        job.note_token(sampled.id, piece, self._clock())
        stop = stop_after_token(
            request,
            piece,
            is_eog=is_eog,
            n_decoded=len(job.generated),
            n_tokens=len(slot.tokens),
            n_ctx=slot.n_ctx,
            predicted_ms=job.timings.predicted_ms,
        )
        self._events.append(
            Token(
                request.id,
                sampled.id,
                piece.text,
                piece.incomplete,
                sampled,
                replace(job.timings),
                piece.stop_word,
            )
        )
        if stop is not None:
            self._release(slot)
            self._events.append(done_event(slot, job, piece, stop))
        else:
            self._masks.begin(job)
