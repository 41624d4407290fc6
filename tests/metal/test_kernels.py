"""Every kernel body, run lane by lane on the CPU, agrees with NumPy; mutated it does not."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from gguf_hybrid.metal import kernel, shim
from gguf_hybrid.metal.kernel import FOLDER, Body
from support import float_cases
from support import kernel_cases as cases

pytestmark = pytest.mark.skipif(shim.compiler() is None, reason="no C++ compiler")

TOLERANCE = 5e-6
"""float32 sums against float64, relative to the largest value."""

MUTATIONS = {
    "norm": ("total / float(K)", "total / float(K - 32)"),
    "matvec": ("parts[s][", "parts[s / 2]["),
    "embed": ("run & 15", "run & 14"),
    "delta_step": ("m[i].z *= decay", "m[i].z *= 1.0f"),
    "convolve": ("i < KC; ++i", "i < KC - 1; ++i"),
    "delta_scan": ("(v_tile[t][tid / 8] - seen)", "(v_tile[t][tid / 8] + seen)"),
    "delta_chunk_parts": ("s < row ? v * rate[row]", "s <= row ? v * rate[row]"),
    "delta_chunk_state": ("s[i][n][r] *= decay", "s[i][n][r] *= 1.0f"),
    "gated_norm": ("silu(z[at])", "sigmoid(z[at])"),
    "rope_kv": ("tid < HALF ? normed[pair] * cosine -", "tid < HALF ? normed[pair] * cosine +"),
    "attend_split": ("mass[r] * fade[r] + sum", "mass[r] + sum"),
    "attend_prompt": ("mass[i] * fade + sum", "mass[i] + sum"),
    "attend_merge": ("mass += weight *", "mass +="),
    "top_experts": ("share[rank] * W_SCALE", "share[K_USED - 1] * W_SCALE"),
    "route": ("row * RANKS + rank", "row * RANKS"),
    "gate_up": ("silu(g) * u", "g * u"),
    "down": ("s < KS; ++s", "s < 1; ++s"),
    "matmul": ("x_words[at + 8 * 36 + 4]", "x_words[at + 8 * 36]"),
    "expert_tiles": ("first += count", "first += count - 1"),
    "swiglu": ("silu(gate[i]) * up[i]", "silu(up[i]) * gate[i]"),
    "combine": ("rank < K_USED; ++rank", "rank < K_USED - 1; ++rank"),
    "repack": ("i * (CODES + 1)", "i * CODES"),
    "raw_matvec": ("first + b < n_rows", "first + b < n_rows - 1"),
    "raw_gate_up": ("at + UP_AT", "at"),
    "raw_down": ("acc[r] += weights[pair] *", "acc[r] +="),
    "delta_rows": ("rate * (mixed", "(mixed"),
    "attend_blocks": ("i = tid / D; i < count", "i = tid / D; i < count - 1"),
    "attend_join": ("mass += weight *", "mass +="),
    "take_tokens": ("picks[source[i]]", "picks[i]"),
    "sample_slices": ("best == mine ? -id", "best == mine ? id"),
    "sample_merge": ("fma(knob[3], total, -sum)", "fma(knob[3], 1.0f, -sum)"),
}

NAMES = sorted(path.stem for path in FOLDER.glob("*.metal"))


def case(name: str) -> Callable[[Body], float]:
    module = float_cases if name in float_cases.__all__ else cases
    found: Callable[[Body], float] = getattr(module, name)
    return found


def test_every_body_has_a_case_and_a_mutation() -> None:
    assert sorted(MUTATIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_body_agrees_with_its_reference(name: str) -> None:
    assert case(name)(kernel.body(name)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_mutated_body_does_not(name: str) -> None:
    body, (old, new) = kernel.body(name), MUTATIONS[name]
    assert old in body.text
    mutant = replace(body, text=body.text.replace(old, new))
    assert case(name)(mutant) > 100 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_body_knows_no_target(name: str) -> None:
    code = re.sub(r"//.*", "", kernel.body(name).text)
    assert not re.search(r"\b(__\w+|shim|std::\w+|asm|__shared__)\b|#\s*if", code)


def test_a_lane_that_skips_a_barrier_is_found() -> None:
    text = "if (thread_index_in_threadgroup > 0) threadgroup_barrier(mem_flags::mem_threadgroup);"
    with pytest.raises(shim.Deadlock):
        shim.run(Body("skip", text), {}, [], (1, 1, 1), 32)
