"""Benchmarks count what they say they count, and compare like with like. No time is tested."""

import json
import mmap
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_hybrid.tools.bench import main
from gguf_hybrid.tools.bench_client import together
from gguf_hybrid.tools.bench_conversation import Turn, n_common
from gguf_hybrid.tools.bench_memory import anonymous_nbytes, step_nbytes
from gguf_hybrid.tools.bench_model import prompt_passes
from gguf_hybrid.tools.bench_report import percentile, ratio, table
from gguf_hybrid.tools.bench_soak import MIB, Log, Mixed, late_growth

from gguf_hybrid.demo import demo_path
from gguf_hybrid.runtime import OpenModel
from gguf_hybrid.runtime_config import RuntimeConfig

FAKE_BENCH = """#!{python}
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
pp, tg = int(flags["-npp"]), int(flags["-ntg"])
print("loading")
for pl in map(int, flags["-npl"].split(",")):
    print(json.dumps(dict(pp=pp, tg=tg, pl=pl, t_pp=pl * pp / 100, t_tg=pl * tg / 10)))
"""
FAILING_BENCH = "#!/bin/sh\necho 'no such flag' >&2\nexit 3\n"
OTHER_SERVER = '#!/bin/sh\nexec "{python}" -m gguf_hybrid.server "$@"\n'


def program(path: Path, text: str) -> str:
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON that a successful benchmark ends with."""
    assert main(arguments) == 0
    last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return last


# -- counting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("pl", "pp", "n_ubatch"), [(1, 512, 512), (3, 100, 64), (4, 7, 512)])
def test_every_prompt_token_is_in_exactly_one_pass(pl: int, pp: int, n_ubatch: int) -> None:
    passes = prompt_passes(pl, pp, n_ubatch)
    assert all(sum(n for _, n, _ in rows) == n_ubatch for rows in passes[:-1])
    assert 0 < sum(n for _, n, _ in passes[-1]) <= n_ubatch
    rows = [row for each in passes for row in each]
    for seq_id in range(pl):
        pieces = [(n, is_last) for s, n, is_last in rows if s == seq_id]
        assert sum(n for n, _ in pieces) == pp
        assert [is_last for _, is_last in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_step_reads_chosen_experts_and_in_the_limit_every_weight() -> None:
    opened = OpenModel.open(RuntimeConfig(model=str(demo_path())))
    config, trunk = opened.config, opened.tensors.trunk
    experts = sum(t.nbytes for t in trunk.values() if len(t.shape) == 3)
    everything = sum(t.nbytes for t in trunk.values())
    share = config.n_expert_used / config.n_expert
    one, two = (step_nbytes(config, trunk, n) for n in (1, 2))
    embedding = 0 if config.tied else trunk["token_embd.weight"].nbytes
    line = embedding / config.n_vocab
    assert one == pytest.approx(everything - embedding + line - experts * (1 - share))
    assert two - one == pytest.approx(line + experts * share * (1 - share))
    assert step_nbytes(config, trunk, 10**6) == pytest.approx(everything)


def test_reread_tokens_are_those_known_and_not_cached() -> None:
    def turn(known: int, cache_n: int) -> Turn:
        return Turn(100, known, cache_n, 100 - cache_n, 0.0, {})

    assert turn(80, 70).reread == 10
    assert turn(80, 90).reread == 0, "a cache may know more than this conversation"
    assert n_common([1, 2, 3], [1, 2, 4, 5]) == 2
    assert n_common([1, 2], [1, 2, 3]) == n_common([1, 2, 3], [1, 2]) == 2
    assert n_common([], [1]) == 0


def test_memory_that_only_fills_a_cache_early_does_not_grow_late() -> None:
    rising = [(float(t), MIB * t) for t in range(100)]
    filled = [(float(t), MIB * min(t, 40)) for t in range(100)]
    assert late_growth(rising) == pytest.approx(49 * MIB)
    assert late_growth(filled) == pytest.approx(0, abs=1)
    assert late_growth(rising[:2]) == 0


def test_anonymous_memory_sees_what_is_allocated() -> None:
    before = anonymous_nbytes()
    if before is None:
        pytest.skip("the system does not tell")
    # A mapping of its own: the allocator of a long test run may have the room already.
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"\1" * len(block))
        after = anonymous_nbytes()
        assert after is not None and after - before > 0.9 * len(block)


def test_a_failing_client_does_not_wait_for_the_others() -> None:
    stopped = threading.Event()

    def fail() -> bool:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        together([fail, stopped.wait])
    assert not stopped.is_set()
    stopped.set()
    assert together([lambda: 1, lambda: 2]) == [1, 2]


# -- reporting --------------------------------------------------------------------------------


def test_percentiles_are_values_that_occurred() -> None:
    values = list(range(1, 101))
    assert [percentile(values[::-1], share) for share in (0.5, 0.9, 0.99, 1)] == [50, 90, 99, 100]
    assert percentile([7], 0.5) == 7


def test_a_ratio_needs_both_sides() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is ratio(3.0, None) is None


def test_columns_line_up_and_missing_figures_are_dashes() -> None:
    lines = table([{"a": 1, "long": None}, {"a": 12345.6, "long": "x"}]).splitlines()
    assert [line.split() for line in lines] == [["a", "long"], ["1", "-"], ["12346", "x"]]
    assert len({len(line) for line in lines}) == 1


# -- the benchmarks ---------------------------------------------------------------------------


def test_sweep_alone(capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(capsys, "-npp", "70", "-ntg", "2", "-npl", "1,3", "-r", "1", "-t", "1")
    assert [point["B"] for point in result["points"]] == [1, 3]
    assert result["bandwidth"] > 0
    for point in result["points"]:
        assert point["arithmetic"] == result["arithmetic"]
        assert point["of_floor"] == pytest.approx(point["S_TG"] / point["floor_TG"])
        assert "ratio_TG" not in point


def test_sweep_against_another_program_on_the_same_grid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake = program(tmp_path / "batched-bench", FAKE_BENCH)
    grid = ("-npp", "64", "-ntg", "2", "-npl", "1,2", "-r", "2", "-t", "1")
    result = measured(capsys, "sweep", *grid, "--against", fake)
    for point in result["points"]:
        assert (point["PP"], point["TG"]) == (64, 2)
        assert point["their_PP"] == pytest.approx(100) and point["their_TG"] == pytest.approx(10)
        assert point["ratio_PP"] == pytest.approx(point["S_PP"] / 100)
        assert point["ratio_TG"] == pytest.approx(point["S_TG"] / 10)


def test_a_failing_peer_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fake = program(tmp_path / "batched-bench", FAILING_BENCH)
    assert main(["-npp", "1", "-ntg", "1", "-npl", "1", "-r", "1", "--against", fake]) == 1
    assert capsys.readouterr().err == f"error: {fake} ended with code 3: no such flag\n"


@pytest.mark.parametrize("npl", ["0", "1,-2", "x", ""])
def test_a_wrong_grid_is_named(capsys: pytest.CaptureFixture[str], npl: str) -> None:
    with pytest.raises(SystemExit):
        main([f"-npl={npl}"])
    assert "-npl" in capsys.readouterr().err


def test_four_requests_share_their_passes(capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(capsys, "parallel", "-n", "32", "-npl", "1,4", "-r", "1", "-t", "1")
    alone, four = result["points"]
    assert alone["rows_per_pass"] == 1 and alone["makespan_ratio"] == 1
    assert four["rows_per_pass"] >= 3.5
    assert len(four["seconds"]) == 4 and four["makespan_s"] == max(four["seconds"])
    assert four["makespan_ratio"] == pytest.approx(four["makespan_s"] / alone["makespan_s"])


def test_http_compares_servers_on_the_same_requests(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = program(tmp_path / "server", OTHER_SERVER)
    grid = ("-npp", "16", "-ntg", "3", "-npl", "1,2", "-r", "1", "-t", "1")
    result = measured(capsys, "http", *grid, "--against", other)
    assert [point["clients"] for point in result["points"]] == [1, 2]
    for point in result["points"]:
        for name in ("PP", "TG", "all"):
            ours, theirs = point[f"S_{name}"], point[f"their_{name}"]
            assert point[f"ratio_{name}"] == pytest.approx(ours / theirs)


def test_cache_rereads_little_and_answers_as_if_cold(capsys: pytest.CaptureFixture[str]) -> None:
    script = ("--turns", "4", "--conversations", "3", "--tool-tokens", "90", "100")
    short = ("-n", "6", "--check-every", "2", "-t", "1", "-c", "8192")
    result = measured(capsys, "cache", *script, *short)
    alone, together = result["phases"]
    assert (alone["ours_differ"], together["ours_differ"]) == ("0/2", "0/6")
    for phase, n_conversations in ((alone, 1), (together, 3)):
        assert phase["ours_read"] > n_conversations * 2 * 90
        assert phase["ours_reread"] <= n_conversations * 4 * 20


def test_soak_counts_clients_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(capsys, "soak", "--minutes", "0.05", "--clients", "4", "-t", "1")
    assert result["requests"] > result["cancelled"] > 0
    assert result["checked"] > 0
    assert result["errors"] == result["different"] == 0


def test_soak_notices_a_wrong_answer() -> None:
    class Wrong:
        def post(self, path: str, body: Any) -> Any:
            return {"content": "x"}

    log = Log()
    mixed = Mixed(Wrong(), log, [({}, "right")])  # type: ignore[arg-type]
    mixed.check(np.random.default_rng(0), [])
    assert log.n_checked == 1 and len(log.differences) == 1
