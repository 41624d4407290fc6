"""``bench kernels`` measures what it says, with results that agree, and recommends what wins."""

import json

import numpy as np
import pytest
from gguf_hybrid.tools.bench import main
from gguf_hybrid.tools.bench_kernels import Line, recommendation
from gguf_hybrid.tools.bench_kernels_model import LAYER_OPERATIONS, Result, random_35b_a3b

from gguf_hybrid.demo import demo_path


def test_every_operation_is_measured_and_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["kernels", "-m", str(demo_path()), "--rows", "1,2", "--context", "300"]
    assert main([*arguments, "--repeat", "1", "--device", "cpu"]) == 0
    *_, line, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert line == f"recommended: {result['recommended']}"
    assert result["own"].startswith("cpu (") and result["stock"] == "mlx (cpu)"
    seen = [(each["operation"], each["rows"]) for each in result["lines"]]
    assert seen == [(operation, rows) for operation in LAYER_OPERATIONS for rows in (1, 2)]
    for each in result["lines"]:
        assert 0 < each["difference"] < 0.05
        assert each["own is x faster"] == pytest.approx(each["stock us"] / each["own us"])


def test_recommended_is_what_wins_and_agrees() -> None:
    fast = [Line("attend", "attend", n, 1.0, 2.0, 1e-6) for n in (1, 8)]
    mixed = [Line("matvec", "logits", 1, 1.0, 2.0, 0.0), Line("matvec", "logits", 8, 4.0, 1.0, 0.0)]
    wrong = [Line("down", "feed_forward", 1, 1.0, 9.0, 0.2)]
    assert recommendation([*fast, *mixed, *wrong]) == "GGUF_HYBRID_KERNELS=off,attend"
    assert recommendation([*mixed, *wrong]) == "GGUF_HYBRID_KERNELS=off"
    assert recommendation([Line("on", "attend", 1, 1.0, 1.5, 0.0)]) == "GGUF_HYBRID_KERNELS=on"


def test_a_difference_is_relative_to_the_largest_value() -> None:
    got, wanted = Result(1.0, np.float32([1, 2])), Result(1.0, np.float32([1, -4]))
    assert got.difference(wanted) == 1.5


@pytest.mark.full
def test_the_default_has_the_sizes_of_35b_a3b() -> None:
    source = random_35b_a3b()
    assert source.tensors["blk.0.ffn_down_exps.weight"].shape == (256, 2048, 512)
    assert source.tensors["output.weight"].shape == (248320, 2048)
