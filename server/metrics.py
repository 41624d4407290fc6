"""``GET /metrics``: Prometheus text with llama.cpp's names, which keep their colon.

Written by hand: the reference prints whole numbers without a fraction and in its own order, and the
two rates are windows that each scrape closes.
"""

from dataclasses import dataclass, replace

from gguf_hybrid.engine.cache import CacheStats
from gguf_hybrid.engine.request import Counters

OWN_PREFIX = "gguf_hybrid"
CONTENT_TYPE = "text/plain; version=0.0.4"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: str
    help: str
    value: float
    prefix: str = "llamacpp"

    def lines(self) -> str:
        name = f"{self.prefix}:{self.name}"
        return (
            f"# HELP {name} {self.help}\n# TYPE {name} {self.kind}\n{name} {_number(self.value)}\n"
        )


class RateWindow:
    """Totals at the last scrape; the next one reports the rates since then."""

    def __init__(self) -> None:
        self._last = Counters()

    def close(self, now: Counters) -> tuple[float, float]:
        """Prompt and generation tokens per second since the last call; 0 when nothing happened."""
        last, self._last = self._last, replace(now)
        prompt = _rate(
            now.prompt_tokens - last.prompt_tokens, now.prompt_seconds - last.prompt_seconds
        )
        predicted = _rate(
            now.tokens_predicted_timed - last.tokens_predicted_timed,
            now.tokens_predicted_seconds - last.tokens_predicted_seconds,
        )
        return prompt, predicted


def render(counters: Counters, rates: tuple[float, float], cache: CacheStats) -> str:
    """The whole page: llama-server's metrics, then those it does not have."""
    metrics = (*_metrics(counters, rates), *_own_metrics(counters, cache))
    return "".join(metric.lines() for metric in metrics)


def _own_metrics(c: Counters, cache: CacheStats) -> tuple[Metric, ...]:
    """What became of the states; the budget is -1 where there is no limit."""
    budget = -1 if cache.budget is None else cache.budget
    rows = (
        (
            "prompt_tokens_restored_total",
            "counter",
            "Reused prompt tokens whose state came from a checkpoint",
            c.prompt_tokens_restored,
        ),
        (
            "prompt_tokens_reread_total",
            "counter",
            "Prompt tokens computed again for want of a state",
            c.prompt_tokens_reread,
        ),
        ("checkpoints", "gauge", "States kept to continue from", cache.n_entries),
        ("checkpoint_bytes", "gauge", "Memory of the kept states and their KV", cache.n_bytes),
        ("checkpoint_bytes_max", "gauge", "Budget of the kept states (--cache-ram)", budget),
    )
    return tuple(Metric(*row, prefix=OWN_PREFIX) for row in rows)


def _metrics(c: Counters, rates: tuple[float, float]) -> tuple[Metric, ...]:
    busy = _rate(c.n_busy_slots, c.n_decode)
    return (
        Metric(
            "prompt_tokens_total",
            "counter",
            "Number of prompt tokens processed, excluding cached tokens",
            c.prompt_tokens,
        ),
        Metric(
            "prompt_tokens_cached_total",
            "counter",
            "Number of prompt tokens reused from the cache",
            c.prompt_tokens_cached,
        ),
        Metric(
            "prompt_seconds_total",
            "counter",
            "Total time spent processing prompts",
            c.prompt_seconds,
        ),
        Metric(
            "tokens_predicted_total",
            "counter",
            "Number of generation tokens processed",
            c.tokens_predicted,
        ),
        Metric(
            "tokens_predicted_seconds_total",
            "counter",
            "Total time spent generating tokens",
            c.tokens_predicted_seconds,
        ),
        Metric(
            "n_decode_total",
            "counter",
            "Total number of llama_decode() calls,"
            " excluding speculative decoding and multimodal decoding",
            c.n_decode,
        ),
        Metric(
            "n_tokens_max",
            "counter",
            "Largest observed sequence length (prompt + generation)",
            c.n_tokens_max,
        ),
        Metric(
            "spec_decode_num_draft_tokens_total",
            "counter",
            "Speculative: Total draft tokens generated",
            0,
        ),
        Metric(
            "spec_decode_num_accepted_tokens_total",
            "counter",
            "Speculative: Total draft tokens accepted by the target model",
            0,
        ),
        Metric(
            "spec_decode_num_drafts_total",
            "counter",
            "Speculative: Total speculative decoding verification steps",
            0,
        ),
        Metric("prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s", rates[0]),
        Metric(
            "predicted_tokens_seconds",
            "gauge",
            "Average generation throughput in tokens/s",
            rates[1],
        ),
        Metric(
            "requests_processing",
            "gauge",
            "Number of requests processing",
            c.requests_processing,
        ),
        Metric("requests_deferred", "gauge", "Number of requests deferred", c.requests_deferred),
        Metric(
            "n_busy_slots_per_decode",
            "gauge",
            "Average number of busy slots per llama_decode() call",
            busy,
        ),
    )


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6g}"
