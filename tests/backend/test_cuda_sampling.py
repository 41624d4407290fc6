"""The device chooses what the host's sampler chooses, from the same seed."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf_hybrid.metal import shim
from gguf_hybrid.metal.host_device import HostDevice

from gguf_hybrid.backend import cuda_sampling
from gguf_hybrid.backend.cuda import CudaBackend
from gguf_hybrid.backend.cuda_kernels import Kernels, Scratch
from gguf_hybrid.backend.cuda_sampling import Sampling, Told
from gguf_hybrid.errors import StepError
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.device import MAX_BIASES, MAX_TOP_K, MAX_WINDOW
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.reasoning_budget import ReasoningBudget
from gguf_hybrid.sampling.vocab import SamplingVocab

N_VOCAB = 150
N_ROWS = 32
EOG = 7

needs_compiler = pytest.mark.skipif(shim.compiler() is None, reason="no C++ compiler")


def vocab() -> SamplingVocab:
    return SamplingVocab([b"%d " % i for i in range(N_VOCAB)], frozenset({EOG}), lambda text: [])


class ShimSampler:
    """``Sampling`` over host memory, with narrow threadgroups: lanes run one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda_sampling, "SLICES", 3)
        monkeypatch.setattr(cuda_sampling, "LANES", 32)
        self.device = HostDevice(poison=255)
        kernels = Kernels(self.device)  # type: ignore[arg-type]
        scratch = Scratch(self.device)  # type: ignore[arg-type]
        self.sampling = Sampling(kernels, scratch, N_VOCAB, N_ROWS)

    def choose(self, samplers: list[Sampler], absorbed: list[int], logits: np.ndarray) -> list[int]:
        """``absorbed`` is the token each row has just read."""
        n = len(samplers)
        told = Told.over(np.zeros(cuda_sampling.n_words(n), np.int32), n)
        told.fill([s.choice() for s in samplers], [-1] * n)
        tokens, picks = np.array(absorbed, np.int32), np.zeros(n, np.int32)
        self.sampling.choose(told.words.ctypes.data, tokens.ctypes.data, logits.ctypes.data, n)
        self.device.download(picks, self.sampling.picks)
        return picks.tolist()


def some_params(rng: np.random.Generator) -> SamplingParams:
    penalties = rng.choice(3)
    return SamplingParams(
        seed=int(rng.integers(2**32 - 1)),
        temperature=float(
            rng.choice([0.0, 0.2, 0.8, 1.0, 1.7, 1e-30], p=[0.2, 0.2, 0.3, 0.1, 0.1, 0.1])
        ),
        top_k=int(rng.integers(1, 12)),
        top_p=float(rng.choice([0.0, 0.3, 0.8, 0.95, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.3, 1.0])),
        repeat_last_n=int(rng.choice([0, 1, 5, 64])),
        repeat_penalty=float(rng.choice([1.0, 1.1, 0.7])) if penalties else 1.0,
        presence_penalty=float(rng.choice([0.0, 1.5, -0.5])) if penalties == 2 else 0.0,
        frequency_penalty=float(rng.choice([0.0, 0.25])) if penalties == 2 else 0.0,
        min_keep=int(rng.integers(2)),
        ignore_eos=bool(rng.integers(2)),
        logit_bias=((3, 2.5), (3, -1.0), (9, -math.inf)) if rng.integers(2) else (),
    )


@needs_compiler
def test_device_and_host_choose_the_same_from_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 rows of their own settings, 60 tokens each, on spread, flat and tied logits."""
    rng, device = np.random.default_rng(5), ShimSampler(monkeypatch)
    params = [some_params(rng) for _ in range(N_ROWS)]
    hosts, twins = ([Sampler(p, vocab()) for p in params] for _ in range(2))
    prompts = rng.integers(0, N_VOCAB, (N_ROWS, 6)).tolist()
    for host, twin, tokens in zip(hosts, twins, prompts, strict=True):
        host.accept_prompt(tokens)
        twin.accept_prompt(tokens)
    last = [tokens[-1] for tokens in prompts]
    for turn in range(60):
        logits = rng.normal(size=(N_ROWS, N_VOCAB)).astype(np.float32) * (1, 4, 0.1)[turn % 3]
        if turn % 4 == 0:
            logits = np.round(logits)
        picks = device.choose(twins, last, logits)
        wanted = [host.sample(row).id for host, row in zip(hosts, logits, strict=True)]
        assert picks == wanted
        for host, twin, token in zip(hosts, twins, wanted, strict=True):
            host.accept(token)
            foreseen = twin.choice(1)
            twin.accept_choice(token)
            now = twin.choice()
            assert foreseen is not None and now is not None and foreseen.number == now.number
            assert list(foreseen.window) == list(now.window)
        last = wanted


@needs_compiler
def test_logits_that_are_not_finite_are_told_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = [Sampler(SamplingParams(seed=1, presence_penalty=1.0), vocab()) for _ in range(5)]
    for sampler in samplers:
        sampler.accept_prompt([4])
    logits = np.zeros((5, N_VOCAB), np.float32)
    logits[0, 4], logits[1, 149], logits[3], logits[4, 1:] = np.nan, np.inf, -np.inf, -np.inf
    picks = ShimSampler(monkeypatch).choose(samplers, [4] * 5, logits)
    assert [p < 0 for p in picks] == [True, True, False, True, False] and picks[4] == 0
    for sampler, row in zip(samplers, logits[[0, 1, 3]], strict=False):
        with pytest.raises(StepError):
            sampler.sample(row)


def test_a_number_drawn_ahead_is_not_lost_to_the_host() -> None:
    """A step on the device that failed or was dropped leaves the seed's numbers as they were."""
    logits = np.random.default_rng(0).normal(size=(20, N_VOCAB)).astype(np.float32)
    plain, other = (Sampler(SamplingParams(seed=3), vocab()) for _ in range(2))
    for row in logits:
        other.choice(1)
        tokens = [each.sample(row).id for each in (plain, other)]
        assert tokens[0] == tokens[1]
        plain.accept(tokens[0])
        other.accept(tokens[1])


UNUSUAL = [
    {"mirostat": 2},
    {"dry_multiplier": 0.5},
    {"top_n_sigma": 1.0},
    {"typical_p": 0.5},
    {"xtc_probability": 0.5},
    {"dynatemp_range": 0.5},
    {"n_probs": 1},
    {"min_keep": 2},
    {"top_k": 0},
    {"top_k": MAX_TOP_K + 1},
    {"samplers": ("top_k", "temperature")},
    {"samplers": ("penalties", "temperature", "top_k", "top_p", "min_p")},
    {"samplers": ("penalties", "top_k", "top_p", "min_p", "temperature", "adaptive_p")},
    {"repeat_last_n": MAX_WINDOW + 1, "repeat_penalty": 1.1},
    {"logit_bias": tuple((i, 1.0) for i in range(MAX_BIASES + 1))},
    {"logit_bias": ((1, 0.1),)},
]


@pytest.mark.parametrize("fields", UNUSUAL, ids=str)
def test_what_only_the_host_can_do_stays_there(fields: dict[str, object]) -> None:
    plain = SamplingParams()
    assert Sampler(plain, vocab()).choice() is not None
    assert Sampler(replace(plain, **fields), vocab()).choice() is None  # type: ignore[arg-type]


def test_grammars_and_budgets_stay_on_the_host() -> None:
    class Grammar:
        def prepare_mask(self) -> None: ...

        def mask(self) -> None: ...

        def accept(self, token: int) -> None: ...

    budget = object.__new__(ReasoningBudget)
    assert Sampler(SamplingParams(), vocab(), Grammar()).choice() is None
    assert Sampler(SamplingParams(), vocab(), None, budget).choice() is None


def test_logits_that_somebody_holds_are_not_overwritten() -> None:
    """Rows of the pinned array are lent out; it is used again once nobody has any."""
    backend: Any = object.__new__(CudaBackend)
    backend.device, backend.config = HostDevice(), SimpleNamespace(n_vocab=5)
    backend._pinned = np.empty(0, np.uint8)
    backend._logits = backend._pinned.view(np.float32).reshape(0, 5)
    rows = list(backend._buffer(2))
    assert not np.shares_memory(rows[1], backend._buffer(2))
    address = backend._buffer(2).ctypes.data
    assert backend._buffer(2).ctypes.data == address
