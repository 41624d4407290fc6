"""The engine without a server: the same requests in one thread, no sockets, no event loop.

It shows what the server costs (``bench http --bare``), and what the host does for each step: the
time of the engine's thread in which it does not wait for the device.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from gguf_hybrid.backend.base import Launched, Picked
from gguf_hybrid.backend.select import create_backend
from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.request import Done, Failed, Request, Token
from gguf_hybrid.memory.store import Floats, Store, StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime import OpenModel, Runtime
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.step import Step
from gguf_hybrid.text.stop import TextReader

from .bench_volley import Volley


class WatchedModel:
    """A model that adds up how long its caller waits for it."""

    def __init__(self, model: Qwen35) -> None:
        self._model = model
        self.waited = 0.0

    @property
    def n_sampled_rows(self) -> int:
        return self._model.n_sampled_rows

    def new_store(self, spec: StoreSpec) -> Store:
        return self._model.new_store(spec)

    def forward(self, step: Step, store: Store) -> Floats:
        began = time.perf_counter()
        logits = self._model.forward(step, store)
        self.waited += time.perf_counter() - began
        return logits

    def hidden(self, step: Step, store: Store) -> Floats:
        return self._model.hidden(step, store)

    def launch(self, *arguments: Any) -> Launched:
        return _WatchedLaunch(self, self._model.launch(*arguments))


@dataclass(frozen=True, slots=True)
class _WatchedLaunch:
    model: WatchedModel
    launched: Launched

    def wait(self) -> Picked:
        began = time.perf_counter()
        picked = self.launched.wait()
        self.model.waited += time.perf_counter() - began
        return picked


@dataclass(frozen=True, slots=True)
class BareVolley(Volley):
    """``host_ms`` is the host's time per step, once all streams have their first token: everything
    but waiting for launched steps and computing those that are not launched."""

    host_ms: float
    step_ms: float


class BareEngine:
    """A loaded engine for volleys like those of ``bench_http.volley``."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._runtime = Runtime(OpenModel.open(config), config)
        backend = create_backend(self._runtime.model_config, config)
        tensors = self._runtime.opened.tensors.trunk
        self._model = WatchedModel(Qwen35(self._runtime.model_config, tensors, backend))
        self._engine = Engine(self._model, self._runtime.engine_options())
        self._ids = count()
        self.n_vocab = self._runtime.model_config.n_vocab

    def volley(self, prompts: Sequence[Sequence[int]], n_predict: int) -> BareVolley:
        """All prompts at once. Raises the error of a request that fails."""
        engine, arrivals = self._engine, {}
        began = time.perf_counter()
        for prompt in prompts:
            request = self._request(prompt, n_predict)
            arrivals[request.id] = [began]
            engine.submit([request])
        first: tuple[float, float, int] | None = None
        while engine.is_busy:
            events = engine.step()
            now = time.perf_counter()
            for event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Token | Done):
                    arrivals[event.id].append(now)
            if first is None and all(len(times) > 1 for times in arrivals.values()):
                first = now, self._model.waited, engine.counters.n_decode
        assert first is not None
        ended = time.perf_counter()
        n_steps = max(engine.counters.n_decode - first[2], 1)
        seconds, waited = ended - first[0], self._model.waited - first[1]
        return BareVolley(
            len(prompts),
            len(prompts[0]),
            n_predict,
            first[0] - began,
            ended - min(times[1] for times in arrivals.values()),
            ended - began,
            max(
                b - a
                for times in arrivals.values()
                for a, b in zip(times[1:], times[2:], strict=False)
            ),
            host_ms=1000 * (seconds - waited) / n_steps,
            step_ms=1000 * seconds / n_steps,
        )

    def _request(self, prompt: Sequence[int], n_predict: int) -> Request:
        runtime = self._runtime
        params = SamplingParams(seed=1, ignore_eos=True)
        return Request(
            id=next(self._ids),
            prompt=tuple(prompt),
            sampler=Sampler(params, runtime.sampling_vocab),
            reader=TextReader(runtime.tokenizer),
            n_predict=n_predict,
            cache_prompt=False,
        )
