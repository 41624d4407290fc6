"""``split`` and ``merge`` undo each other and lose nothing."""

from pathlib import Path

import pytest
from gguf_hybrid.tools.diff import differences
from gguf_hybrid.tools.merge import main as merge
from gguf_hybrid.tools.shards import parse_size
from gguf_hybrid.tools.split import main as split

from gguf_hybrid.weights.reader import open_gguf

MODELS = Path(__file__).parents[1] / "data" / "models"
MODEL = MODELS / "qwen35-tiny-Q4_K_M.gguf"


@pytest.mark.parametrize("limit", [[], ["--split-max-size", "1M"], ["--split-max-tensors", "9"]])
def test_merging_a_split_file_gives_it_back(limit, tmp_path):
    source = MODELS / "qwen35moe-tiny-Q4_0.gguf"
    assert split([str(source), str(tmp_path / "part"), *limit]) == 0
    shards = sorted(tmp_path.glob("part-*.gguf"))
    assert len(shards) > 1
    assert list(differences(open_gguf(source), open_gguf(shards[-1]))) != []  # the split keys
    assert merge([str(shards[0]), str(tmp_path / "whole.gguf")]) == 0
    assert (tmp_path / "whole.gguf").read_bytes() == source.read_bytes()


def test_limits_hold_and_nothing_is_lost(tmp_path):
    assert split([str(MODEL), str(tmp_path / "p"), "--split-max-size", "1M"]) == 0
    shards = sorted(tmp_path.glob("p-*.gguf"))
    joined = open_gguf(shards[0])
    assert list(joined.tensors) == list(open_gguf(MODEL).tensors)
    for shard in shards:
        held = [t for t in joined.tensors.values() if t.file == shard]
        assert len(held) == 1 or sum(t.nbytes for t in held) <= 1_000_000


def test_a_file_within_the_limit_stays_whole(tmp_path):
    assert split([str(MODEL), str(tmp_path / "p"), "--split-max-size", "1G"]) == 0
    assert (tmp_path / "p.gguf").read_bytes() == MODEL.read_bytes()


def test_dry_run_writes_nothing(tmp_path, capsys):
    assert split([str(MODEL), str(tmp_path / "p"), "--dry-run", "--split-max-tensors", "50"]) == 0
    assert "p-00001-of-00003.gguf: 50 tensors" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_splitting_twice_and_merging_one_file_are_refused(tmp_path, capsys):
    assert split([str(MODEL), str(tmp_path / "p"), "--split-max-tensors", "50"]) == 0
    first = str(tmp_path / "p-00001-of-00003.gguf")
    assert split([first, str(tmp_path / "q")]) == 1
    assert merge([str(MODEL), str(tmp_path / "q.gguf")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "is split already" in errors[0] and "is not split" in errors[1]


def test_existing_shards_need_force(tmp_path, capsys):
    arguments = [str(MODEL), str(tmp_path / "p"), "--split-max-tensors", "50"]
    assert split(arguments) == 0
    assert split(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert split([*arguments, "--force"]) == 0


@pytest.mark.parametrize(("text", "nbytes"), [("5", 5), ("2K", 2000), ("3M", 3_000_000)])
def test_sizes_count_in_powers_of_ten(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1M", "1T", "1.5G", "M"])
def test_other_sizes_are_refused(text):
    with pytest.raises(Exception, match="is not a size"):
        parse_size(text)
