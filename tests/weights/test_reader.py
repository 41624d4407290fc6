"""A GGUF file is read exactly as gguf-py reads it, or refused in one line."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_hybrid.errors import GGUFError
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.metadata import StringArray, ValueType
from gguf_hybrid.weights.reader import open_gguf

DEMO = Path(__file__).parents[2] / "gguf_hybrid/demo/qwen35moe-tiny-Q4_K_M.gguf"
U16, U32, I32, F32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, StringArray) else value


def small_file(builder):
    """A file with a key of most types and two tensors."""
    made = builder().field("general.architecture", STRING, "qwen35").field("n", U32, 7)
    made.array("words", STRING, ["a", "", "é"]).array("flags", BOOL, [True, False])
    made.tensor("a", (4, 2), np.arange(8, dtype="<f4").tobytes())
    return made.tensor("b", (32,), bytes(18), type_id=2)


def refused(path, *words):
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in (path.name, *words):
        assert word in message
    return message


def test_demo_file_reads_as_gguf_py_reads_it():
    ours, theirs = open_gguf(DEMO), GGUFReader(DEMO)
    want = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert {key: plain(value) for key, value in ours.metadata.items()} == want
    assert len(theirs.tensors) == len(ours.tensors)
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.type.name == tensor.tensor_type.name
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.offset == tensor.data_offset
        assert info.data.tobytes() == tensor.data.tobytes()


def test_types_of_values_are_kept(builder, gguf_file):
    fields = open_gguf(gguf_file(small_file(builder))).fields
    assert fields["n"].type is ValueType.U32
    assert fields["words"].item_type is ValueType.STRING
    assert fields["flags"].item_type is ValueType.BOOL
    assert plain(fields["flags"].value) == [True, False]


def test_string_array_is_a_sequence(builder, gguf_file):
    words = open_gguf(gguf_file(small_file(builder))).metadata["words"]
    assert isinstance(words, StringArray)
    assert list(words) == ["a", "", "é"] == words[:] == [words[i] for i in range(3)]
    assert words[-1] == "é"
    assert list(reversed(words)) == ["é", "", "a"]
    with pytest.raises(IndexError):
        words[3]


def test_tensor_data_is_a_read_only_view(builder, gguf_file):
    info = open_gguf(gguf_file(small_file(builder))).tensors["a"]
    assert info.data.dtype == np.uint8 and info.data.shape == (32,)
    assert not info.data.flags.writeable and not info.data.flags.owndata
    assert info.data.view("<f4").tolist() == list(range(8))
    assert info.shape == (2, 4) and info.size == 8
    assert info.address == info.data.ctypes.data and info.address % 32 == 0


def test_data_survives_dropped_pages():
    info = open_gguf(DEMO).tensors["output.weight"]
    before = info.data.copy()
    info.drop_pages()
    assert np.array_equal(info.data, before)


def test_version_2_has_the_same_layout(builder, gguf_file):
    made = small_file(builder)
    made.version = 2
    gguf = open_gguf(gguf_file(made))
    assert gguf.version == 2 and set(gguf.tensors) == {"a", "b"}


def test_alignment_of_the_file_is_used(builder, gguf_file):
    made = builder(alignment=128).field("general.alignment", U32, 128)
    made.tensor("a", (1,), struct.pack("<f", 1)).tensor("b", (1,), struct.pack("<f", 2))
    tensors = open_gguf(gguf_file(made)).tensors
    assert [t.data.view("<f4")[0] for t in tensors.values()] == [1, 2]
    assert all(t.offset % 128 == 0 for t in tensors.values())


def test_every_truncation_is_refused(builder, gguf_file):
    content = small_file(builder).build()
    whole = len(content) - 14  # the last tensor is padded from 18 to 32 bytes
    open_gguf(gguf_file(content[:whole]))
    for size in range(whole):
        refused(gguf_file(content[:size]))


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(data, builder, gguf_file):
    content = bytearray(small_file(builder).build())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ 1]))
    path = gguf_file(bytes(content))
    try:
        gguf = open_gguf(path)
        for value in gguf.metadata.values():
            plain(value)
        assert all(t.offset + t.nbytes <= len(content) for t in gguf.tensors.values())
    except GGUFError as error:
        assert "\n" not in str(error) and str(path) in str(error)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "0 bytes"),
        (b"GG", "2 bytes"),
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack("<III", 1, 0, 0) + bytes(16), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
        (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "version 0"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "byte-swapped"),
    ],
)
def test_what_is_no_gguf_file_is_named(content, word, gguf_file):
    refused(gguf_file(content), word)


def test_unreadable_paths_are_named(tmp_path):
    refused(tmp_path / "absent.gguf", "No such file")
    refused(tmp_path, "directory")


@pytest.mark.parametrize("n", [1000, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("what", ["n_fields", "n_tensors"])
def test_absurd_counts_do_not_allocate(builder, gguf_file, what, n):
    made = small_file(builder)
    setattr(made, what, n)
    path = gguf_file(made)
    tracemalloc.start()
    refused(path, str(n))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("item_id", [U32, STRING, BOOL])
@pytest.mark.parametrize("n", [1 << 20, 1 << 62, (1 << 64) - 1])
def test_absurd_array_lengths_do_not_allocate(builder, gguf_file, item_id, n):
    made = small_file(builder).raw_field("list", ARRAY, struct.pack("<iQ", item_id, n) + bytes(64))
    refused(gguf_file(made), "list", str(n))


@pytest.mark.parametrize("n", [1 << 20, 1 << 63, (1 << 64) - 1])
def test_absurd_string_lengths_are_refused(builder, gguf_file, n):
    inside = struct.pack("<iQQ", STRING, 1, n) + bytes(64)
    refused(gguf_file(builder().raw_field("list", ARRAY, inside)), "list")
    refused(gguf_file(builder().raw_field("text", STRING, struct.pack("<Q", n))), "text")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda b: b.field("k", U32, 1).field("k", U32, 2), ["duplicate key k"]),
        (lambda b: b.field("", U32, 1), ["empty"]),
        (lambda b: b.field("a\nb", U32, 1), ["key 0", "a\\nb"]),
        (lambda b: b.raw_field(b"\xff\xfe", U32, bytes(4)), ["not UTF-8"]),
        (lambda b: b.raw_field("k", STRING, struct.pack("<Q", 1) + b"\xff"), ["k", "not UTF-8"]),
        (lambda b: b.raw_field("k", 13, bytes(8)), ["key k", "13"]),
        (lambda b: b.raw_field("k", -1, bytes(8)), ["key k", "-1"]),
        (lambda b: b.raw_field("k", BOOL, b"\x02"), ["key k", "bool"]),
        (lambda b: b.raw_field("k", ARRAY, struct.pack("<iQ", BOOL, 1) + b"\x07"), ["k", "bool"]),
        (lambda b: b.raw_field("k", ARRAY, struct.pack("<iQ", ARRAY, 0)), ["array of arrays"]),
        (lambda b: b.field("general.alignment", U32, 24), ["general.alignment", "24"]),
        (lambda b: b.field("general.alignment", U32, 0), ["general.alignment"]),
        (lambda b: b.field("general.alignment", STRING, "32"), ["general.alignment"]),
    ],
)
def test_bad_keys_are_named(make, words, builder, gguf_file):
    made = make(builder())
    refused(gguf_file(made), *words)


def test_bad_utf8_in_a_string_array_is_named_on_access(builder, gguf_file):
    words = open_gguf(gguf_file(builder().array("list", STRING, ["a", b"\xff"]))).metadata["list"]
    with pytest.raises(GGUFError, match=r"list\[1\] is not UTF-8"):
        list(words)
    with pytest.raises(GGUFError, match=r"list\[1\] is not UTF-8"):
        words[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda b: b.tensor("t", (16,), bytes(32)), ["tensor t", "truncated"]),
        (lambda b: b.tensor("t", (8,), bytes(32), offset=1 << 63), ["tensor t", "truncated"]),
        (lambda b: b.tensor("t", (1 << 62, 1 << 62), bytes(32)), ["tensor t", "truncated"]),
        (lambda b: b.tensor("t", (8,), bytes(64), offset=8), ["tensor t", "misaligned"]),
        (
            lambda b: b.tensor("s", (16,), bytes(64)).tensor("t", (8,), bytes(32), offset=32),
            ["tensor t overlaps tensor s"],
        ),
        (lambda b: b.tensor("t", (1,), bytes(4)).tensor("t", (1,), bytes(4)), ["duplicate"]),
        (lambda b: b.tensor("t", (8,), bytes(32), type_id=4), ["tensor t", "type 4"]),
        (lambda b: b.tensor("t", (8,), bytes(32), type_id=137), ["tensor t", "type 137"]),
        (lambda b: b.tensor("t", (48,), bytes(36), type_id=2), ["tensor t", "Q4_0", "48"]),
        (lambda b: b.tensor("t", (), bytes(4)), ["tensor t", "0 dimensions"]),
        (lambda b: b.tensor("t", (1,) * 5, bytes(4)), ["tensor t", "5 dimensions"]),
        (lambda b: b.tensor("t", (8, 0), bytes(32)), ["tensor t", "[8, 0]"]),
        (lambda b: b.tensor("t", (-8, -1), bytes(32)), ["tensor t", "-8"]),
        (lambda b: b.tensor("", (1,), bytes(4)), ["name of tensor 0 is empty"]),
        (lambda b: b.tensor("a\nb", (1,), bytes(4)), ["tensor 0", "a\\nb"]),
        (lambda b: b.tensor("t" * 64, (1,), bytes(4)), ["64"]),
        (lambda b: b.tensor(b"\xff", (1,), bytes(4)), ["not UTF-8"]),
    ],
)
def test_bad_tensors_are_named(make, words, builder, gguf_file):
    refused(gguf_file(make(builder())), *words)


@pytest.mark.parametrize("ggml_type", GGMLType, ids=lambda t: t.name)
def test_every_ggml_type_is_located(ggml_type, builder, gguf_file):
    blocks = bytes(range(256)) * 40
    made = builder().tensor("t", (256, 2), blocks, type_id=ggml_type.value)
    info = open_gguf(gguf_file(made)).tensors["t"]
    assert info.type is ggml_type and info.shape == (2, 256)
    assert info.data.tobytes() == blocks[: info.nbytes]


def shards(builder, gguf_file, count=3):
    """Writes ``count`` shards; the first has no tensors, shard i the tensor ``t{i}``."""
    paths = []
    for i in range(count):
        made = builder().field("split.no", U16, i).field("split.count", U16, count)
        made.field("split.tensors.count", I32, count - 1)
        made.field("only.in.first" if i == 0 else "later", U32, i)
        if i:
            made.tensor(f"t{i}", (1,), struct.pack("<f", i))
        paths.append(gguf_file(made, f"m-{i + 1:05}-of-{count:05}.gguf"))
    return paths


@pytest.mark.parametrize("given_shard", range(3))
def test_any_shard_leads_to_the_whole_set(builder, gguf_file, given_shard):
    paths = shards(builder, gguf_file)
    gguf = open_gguf(paths[given_shard])
    assert gguf.paths == tuple(paths) and gguf.path == paths[0]
    assert gguf.metadata["only.in.first"] == 0 and "later" not in gguf.metadata
    assert {n: (t.file, t.data.view("<f4")[0]) for n, t in gguf.tensors.items()} == {
        "t1": (paths[1], 1),
        "t2": (paths[2], 2),
    }


@pytest.mark.parametrize("absent", range(1, 3))
def test_a_missing_shard_is_named(builder, gguf_file, absent):
    paths = shards(builder, gguf_file)
    paths[absent].unlink()
    refused(paths[0], paths[absent].name, "missing")


def test_a_renamed_shard_is_refused(builder, gguf_file):
    path = shards(builder, gguf_file)[1]
    refused(path.rename(path.with_name("model.gguf")), "3 shards")


def test_a_shard_in_the_wrong_place_is_named(builder, gguf_file):
    paths = shards(builder, gguf_file)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(GGUFError, match=f"{paths[2].name}: key split.no is 1, expected 2"):
        open_gguf(paths[0])


def test_a_shard_without_split_keys_is_named(builder, gguf_file):
    paths = shards(builder, gguf_file)
    paths[1].write_bytes(builder().build())
    with pytest.raises(GGUFError, match=f"{paths[1].name}: key split.no is missing"):
        open_gguf(paths[0])


def test_a_tensor_in_two_shards_is_named(builder, gguf_file):
    paths = shards(builder, gguf_file)
    made = builder().field("split.no", U16, 2).field("split.count", U16, 3)
    paths[2].write_bytes(made.tensor("t1", (1,), bytes(4)).build())
    with pytest.raises(GGUFError, match=f"{paths[2].name}: tensor t1 is also in .*{paths[1].name}"):
        open_gguf(paths[0])


def test_the_number_of_tensors_over_all_shards_is_checked(builder, gguf_file):
    paths = shards(builder, gguf_file)
    made = builder().field("split.no", U16, 2).field("split.count", U16, 3)
    paths[2].write_bytes(made.build())
    with pytest.raises(GGUFError, match="split.tensors.count is 2, the shards hold 1"):
        open_gguf(paths[0])
