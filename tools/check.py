"""A deep look at one GGUF file: ``inspect --check``.

Reads what loading a model only trusts: every scale and every float weight has to be finite, the
tokenizer has to give a text back, the chat template has to render.
"""

from collections.abc import Iterator

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GgufHybridError
from gguf_hybrid.text.template import ChatTemplate
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.blocks import scale_field
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo

# Byte positions of the f16 scales in a block.
SCALES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
}
SAMPLE_TEXT = "Hello, wörld! 你好 🙂\n\tdef f(x): return x**2  # 12345"
CONVERSATION = [{"role": "user", "content": "Hello"}]
SLAB_BLOCKS = 1 << 20


def problems(model: GGUFFile) -> Iterator[str]:
    """One line a problem; nothing for a sound model."""
    yield from structure_problems(model)
    for tensor in model.tensors.values():
        yield from value_problems(tensor)


def structure_problems(model: GGUFFile) -> Iterator[str]:
    """What is wrong with metadata, tensor names and shapes, tokenizer and chat template."""
    for check in (_check_structure, _check_tokenizer, _check_template):
        try:
            yield from check(model)
        except GgufHybridError as error:
            yield str(error)


def value_problems(tensor: TensorInfo) -> Iterator[str]:
    """What is wrong with the values of one tensor, all of which are read."""
    yield from _check_values(tensor)
    tensor.drop_pages()


def _check_structure(model: GGUFFile) -> Iterator[str]:
    config = ModelConfig.from_metadata(model.metadata, model.tensors, str(model.path))
    check_tensors(config, model.tensors, str(model.path))
    yield from ()


def _check_tokenizer(model: GGUFFile) -> Iterator[str]:
    tokenizer = Tokenizer.from_metadata(model.metadata)
    if tokenizer.eos_id is None:
        yield "tokenizer.ggml.eos_token_id is missing"
    ids = tokenizer.encode(SAMPLE_TEXT)
    text = b"".join(tokenizer.vocabulary.printed(i) for i in ids).decode("utf-8", "replace")
    if text != SAMPLE_TEXT:
        yield f"tokenizer: {SAMPLE_TEXT!r} comes back as {text!r}"


def _check_template(model: GGUFFile) -> Iterator[str]:
    source = model.metadata.get("tokenizer.chat_template")
    if source is None:
        yield "tokenizer.chat_template is missing: chat requests need --chat-template"
        return
    prompt = ChatTemplate(str(source)).render(CONVERSATION)
    if "Hello" not in prompt:
        yield "tokenizer.chat_template drops the user's message"


def _check_values(tensor: TensorInfo) -> Iterator[str]:
    n_bad = sum(_count_bad_blocks(tensor, slab) for slab in _block_slabs(tensor))
    if n_bad:
        yield f"tensor {tensor.name}: {n_bad} {tensor.type.name} blocks hold a value not finite"
    elif tensor.name.endswith(".ssm_a") and (_decoded(tensor) >= 0).any():
        yield f"tensor {tensor.name}: decays have to be negative"


def _block_slabs(tensor: TensorInfo) -> Iterator[np.ndarray[tuple[int, int], np.dtype[np.uint8]]]:
    blocks = tensor.data.reshape(-1, BLOCK_SIZES[tensor.type].nbytes)
    for start in range(0, len(blocks), SLAB_BLOCKS):
        yield blocks[start : start + SLAB_BLOCKS]


def _count_bad_blocks(
    tensor: TensorInfo, blocks: np.ndarray[tuple[int, int], np.dtype[np.uint8]]
) -> int:
    """Scales only, where it is known where they lie; else all weights."""
    starts = SCALES.get(tensor.type)
    if starts is not None:
        values = np.concatenate([scale_field(blocks, start) for start in starts], axis=1)
    else:
        length = BLOCK_SIZES[tensor.type].length
        values = dequantize(blocks.reshape(-1), tensor.type, (len(blocks), length))
    finite = np.isfinite(values)
    return 0 if finite.all() else int((~finite.all(axis=1)).sum())


def _decoded(tensor: TensorInfo) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return dequantize(tensor.data, tensor.type, tensor.shape)
