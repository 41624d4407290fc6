"""Compares an answer with a recorded one, by the rules of the recordings' README.

Whatever is not compared is named: ``<volatile>`` and ``unstable_paths`` come with the recording,
``MASKS`` below hold for every case, and ``deviations.json`` lists the cases in which this server
answers otherwise, path by path, each with its reason.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

Json = Any

VOLATILE = "<volatile>"
LOGPROB_TOLERANCE = 0.1
FAR_TAIL = -7.0
"""Below this log-probability a difference means little: a tolerance relative to the value."""
NUMBER_TOLERANCE = 1e-6

# name -> paths that are not compared in any case.
MASKS: dict[str, tuple[str, ...]] = {
    "drafting does not exist yet": ("*.draft_n", "*.draft_n_accepted"),
    "times and sizes": ("*.created", "*.prompt_progress.time_ms"),
    "chunks of a prompt are cut at other positions": ("*.prompt_progress.processed",),
    "counts of states that only this server shows": (
        "*.n_prompt_tokens_restored",
        "*.n_prompt_tokens_reread",
    ),
    "which of several simultaneous requests comes first": ("steps[*].parallel[*].*.id_slot",),
}
# Counts of a prompt's tokens: reused, and computed where the object shows it beside.
CACHE_COUNTS = (
    ("cache_n", "prompt_n"),
    ("n_prompt_tokens_cache", "n_prompt_tokens_processed"),
    ("cache_read_input_tokens", "input_tokens"),
    ("cached_tokens", ""),
)
# Wording that comes from the reference's libraries.
FREE_WORDING = re.compile(r"\[json\.exception|While executing|vector::_M_range_check")
# A rule that only the reference's conversion of a schema has: such a grammar is its own business.
GENERATED_GRAMMAR = "space ::="
_DRAWN = ("*.content", "*.tokens", "*.completion_probabilities[*].id")
_DRAWN += tuple(
    f"*.completion_probabilities[*].{key}" for key in ("token", "bytes", "prob", "logprob")
)


class Comparison:
    """Differences between one case's answers and its recording."""

    def __init__(self, case: Json, masked: Sequence[str]) -> None:
        self._case = case
        self._masked = [*masked, *case["unstable_paths"]]
        self._masked += [path for paths in MASKS.values() for path in paths]
        if case["compare"] == "probs":
            self._masked += _DRAWN
        self._found: list[str] = []
        self._may_reuse_more = "--no-cache-prompt" not in case["server_flags"]

    def differences(self, answers: list[Json]) -> list[str]:
        """One line each. A case with near ties is compared by keys and types where texts differ."""
        self._steps(answers, shape=self._case["compare"] == "shape")
        if self._found and not self._case["same_with_q8_0"]:
            self._found = []
            self._steps(answers, shape=True)
        return self._found

    def _steps(self, answers: list[Json], shape: bool) -> None:
        for i, (step, answer) in enumerate(zip(self._case["steps"], answers, strict=True)):
            self._step(step, answer, f"steps[{i}]", shape)

    def _step(self, step: Json, answer: Json, path: str, shape: bool) -> None:
        if "parallel" in step:
            for i, (one, got) in enumerate(zip(step["parallel"], answer["parallel"], strict=True)):
                self._step(one, got, f"{path}.parallel[{i}]", shape)
            return
        self._value(step["status"], answer["status"], f"{path}.status", False)
        self._headers(step["response_headers"], answer["response_headers"], path)
        for key in ("response_body", "response_body_text"):
            if key in step:
                self._value(step[key], answer.get(key), f"{path}.{key}", shape)
        if "sse_events" in step:
            self._events(step["sse_events"], answer.get("sse_events", []), path, shape)
        for i, inner in enumerate(step.get("while_streaming", [])):
            where = f"{path}.while_streaming[{i}]"
            self._step(inner, answer["while_streaming"][i], where, shape)

    def _headers(self, expected: dict[str, str], got: dict[str, str], path: str) -> None:
        have = {name.lower(): value for name, value in got.items()}
        for name, value in expected.items():
            self._value(value, have.get(name.lower()), f"{path}.headers.{name}", False)

    def _events(self, expected: list[Json], got: list[Json], path: str, shape: bool) -> None:
        expected = [event for event in expected if event.get("data", 0) is not None]
        if self._case["compare"] == "interleaved":
            by_index = _by_index(got)
            for index, events in _by_index(expected).items():
                where = f"{path}.choice[{index}]"
                self._value(events, by_index.get(index), where, shape)
            return
        expected, got = _one_progress(expected), _one_progress(got)
        if shape and len(expected) != len(got):
            expected, got = _ends(expected), _ends(got)
        self._value(expected, got, f"{path}.sse_events", shape)

    def _value(self, expected: Json, got: Json, path: str, shape: bool) -> None:
        if expected == VOLATILE or any(_matches(path, mask) for mask in self._masked):
            return
        if isinstance(expected, dict) and isinstance(got, dict):
            self._object(expected, got, path, shape)
        elif isinstance(expected, list) and isinstance(got, list):
            self._array(expected, got, path, shape)
        elif _is_own_wording(path, str(expected), str(got)):
            return
        elif path.endswith("response_body_text") and VOLATILE in str(expected):
            self._text(expected, got, path)
        elif not (_same_type(expected, got) if shape else _same(expected, got, path)):
            self._found.append(f"{path}: expected {_short(expected)}, got {_short(got)}")

    def _object(self, expected: Json, got: Json, path: str, shape: bool) -> None:
        if self._may_reuse_more:
            got = _reused_as_recorded(expected, got)
        for key in expected.keys() | got.keys():
            where = f"{path}.{key}"
            if any(_matches(where, mask) for mask in self._masked):
                continue
            if key not in got or key not in expected:
                side = "missing" if key not in got else "unexpected"
                self._found.append(f"{where}: {side}")
            else:
                self._value(expected[key], got[key], where, shape)

    def _array(self, expected: Json, got: Json, path: str, shape: bool) -> None:
        if path.endswith((".top_logprobs", ".top_probs")):
            expected, got = _aligned(expected, got)
        if len(expected) != len(got) and not shape:
            self._found.append(f"{path}: expected {len(expected)} elements, got {len(got)}")
        for i, (a, b) in enumerate(zip(expected, got, strict=False)):
            self._value(a, b, f"{path}[{i}]", shape)

    def _text(self, expected: str, got: str, path: str) -> None:
        """Lines of a text in which some values are volatile."""
        pattern = re.escape(expected).replace(re.escape(VOLATILE), r"\S+")
        if not re.fullmatch(pattern, got):
            ours = got.splitlines()
            for i, line in enumerate(expected.splitlines()):
                have = ours[i] if i < len(ours) else None
                if VOLATILE not in line and line != have:
                    self._found.append(f"{path}: expected {line!r}, got {have!r}")


def _matches(path: str, mask: str) -> bool:
    """``*`` in a mask stands for anything, all else for itself."""
    return re.fullmatch(re.escape(mask).replace(r"\*", ".*"), path) is not None


def _same_type(expected: Json, got: Json) -> bool:
    number = (int, float)
    if isinstance(expected, number) and isinstance(got, number):
        return isinstance(expected, bool) == isinstance(got, bool)
    return type(expected) is type(got)


def _same(expected: Json, got: Json, path: str) -> bool:
    if not _same_type(expected, got):
        return False
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        return bool(expected == got)
    if path.endswith(("logprob", ".prob")):
        tolerance = LOGPROB_TOLERANCE * max(1.0, expected / FAR_TAIL)
        return abs(expected - got) <= tolerance
    return bool(abs(expected - got) <= NUMBER_TOLERANCE * max(1.0, abs(expected)))


def _by_index(events: Iterable[Json]) -> dict[int | None, list[Json]]:
    """Events of a stream by the choice they belong to."""
    found: dict[int | None, list[Json]] = defaultdict(list)
    for event in events:
        data = event.get("data")
        choices = data.get("choices") if isinstance(data, dict) else None
        index = (
            choices[0]["index"]
            if choices
            else (data.get("index") if isinstance(data, dict) else None)
        )
        found[index].append(event)
    return found


def _one_progress(events: list[Json]) -> list[Json]:
    """Progress events between the first and the last are left out: chunks may be cut elsewhere."""
    at = [i for i, event in enumerate(events) if _is_progress(event)]
    return [event for i, event in enumerate(events) if i not in at[1:-1]]


def _aligned(expected: list[Json], got: list[Json]) -> tuple[list[Json], list[Json]]:
    """Probability lists by token id: near-equal entries may swap, and the last ones change."""
    if len(expected) != len(got) or not expected:
        return expected, got
    value = "logprob" if "logprob" in expected[0] else "prob"
    floor = expected[-1][value] + LOGPROB_TOLERANCE * max(1.0, expected[-1][value] / FAR_TAIL)
    ours = {entry["id"]: entry for entry in got}
    kept = [e for e in expected if e["id"] in ours or e[value] > floor]
    return kept, [ours.get(entry["id"], {}) for entry in kept]


def _is_progress(event: Json) -> bool:
    return isinstance(event.get("data"), dict) and "prompt_progress" in event["data"]


def _is_own_wording(path: str, expected: str, got: str) -> bool:
    """A message may say more than the recorded one; some texts are a library's own."""
    if path.endswith(".grammar"):
        return GENERATED_GRAMMAR in expected
    if not path.endswith(".error.message"):
        return False
    return got.startswith(expected) or FREE_WORDING.search(expected) is not None


def _reused_as_recorded(expected: Json, got: Json) -> Json:
    """``got`` with recorded counts where more of a prompt came from the cache than there.

    The length of the prompt must be the same, as far as the object shows it.
    """
    for cached, computed in CACHE_COUNTS:
        if cached not in expected or got.get(cached, -1) <= expected[cached]:
            continue
        counts = [key for key in (cached, computed) if key in expected and key in got]
        same_prompt = len(counts) == 1 or sum(got[k] - expected[k] for k in counts) == 0
        if same_prompt:
            got = {**got, **{key: expected[key] for key in counts}}
    return got


def _ends(events: list[Json]) -> list[Json]:
    """First and last event, for streams whose length is not comparable."""
    return [events[0], events[-1]] if events else []


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) < 120 else f"{text[:120]}…"
