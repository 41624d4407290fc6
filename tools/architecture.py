"""What tensors a qwen35 or qwen35moe file must hold, and their shapes, from its metadata.

Shared by the converter (does config.json fit the weights?) and by ``inspect --check``. Shapes are
in numpy order, (out, in). Stated in the architecture's own terms: H, n_head, n_k, n_v, ...
"""

from collections.abc import Iterator, Mapping

from gguf_hybrid.weights.metadata import Field

Shapes = dict[str, tuple[int, ...]]
ARCHITECTURES = ("qwen35", "qwen35moe")


def shape_problems(
    fields: Mapping[str, Field], shapes: Mapping[str, tuple[int, ...]], *, trunk: bool = True
) -> Iterator[str]:
    """Each tensor that is missing or has another shape, as half a sentence.

    ``trunk`` is off for files that hold only the MTP block.
    """
    for name, want in required_shapes(fields, trunk=trunk).items():
        have = shapes.get(name)
        if have is None:
            yield f"tensor {name} is missing"
        elif _squeezed(have) != _squeezed(want):
            yield f"tensor {name} has the shape {list(have)}, expected {list(want)}"


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of length 1 at the front are interchangeable with absent ones in ggml."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def required_shapes(fields: Mapping[str, Field], *, trunk: bool = True) -> Shapes:
    """Name and shape of every tensor that a file with this metadata must hold."""
    model = _Model(fields)
    shapes: Shapes = {
        "token_embd.weight": (model.n_vocab, model.width),
        "output_norm.weight": (model.width,),
    }
    if not model.n_vocab:
        del shapes["token_embd.weight"]
    for layer in range(0 if trunk else model.n_layer, model.n_block):
        block = model.linear_block() if model.is_linear(layer) else model.attention_block()
        block |= model.feed_forward()
        if layer >= model.n_layer:
            block |= model.mtp_block()
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


class _Model:
    """The sizes of one model, read from its metadata."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._arch = str(fields["general.architecture"].value)
        self.width = self._number("embedding_length")
        self.n_block = self._number("block_count")
        self.n_layer = self.n_block - self._number("nextn_predict_layers", 0)
        self.head_dim = self._number(
            "attention.key_length", self.width // self._number("attention.head_count")
        )
        self.n_k, self.n_v = self._number("ssm.group_count"), self._number("ssm.time_step_rank")
        self.dim = self._number("ssm.state_size")
        tokens = fields.get("tokenizer.ggml.tokens")
        self.n_vocab = 0 if tokens is None else len(tokens.value)  # type: ignore[arg-type]

    def _number(self, key: str, default: int | None = None) -> int:
        entry = self._fields.get(f"{self._arch}.{key}")
        if entry is None and default is not None:
            return default
        assert entry is not None, f"{self._arch}.{key} is required"
        return int(entry.value)  # type: ignore[arg-type]

    def is_linear(self, layer: int) -> bool:
        if layer >= self.n_layer:
            return False
        recurrent = self._fields.get(f"{self._arch}.attention.recurrent_layers")
        if recurrent is not None:
            return bool(recurrent.value[layer])  # type: ignore[index]
        return (layer + 1) % self._number("full_attention_interval", 4) != 0

    def attention_block(self) -> Shapes:
        q = self._number("attention.head_count") * self.head_dim
        kv = self._number("attention.head_count_kv") * self.head_dim
        return self._norms() | {
            "attn_q.weight": (2 * q, self.width),
            "attn_k.weight": (kv, self.width),
            "attn_v.weight": (kv, self.width),
            "attn_output.weight": (self.width, q),
            "attn_q_norm.weight": (self.head_dim,),
            "attn_k_norm.weight": (self.head_dim,),
        }

    def linear_block(self) -> Shapes:
        inner = self._number("ssm.inner_size")
        channels = 2 * self.n_k * self.dim + inner
        return self._norms() | {
            "attn_qkv.weight": (channels, self.width),
            "attn_gate.weight": (inner, self.width),
            "ssm_alpha.weight": (self.n_v, self.width),
            "ssm_beta.weight": (self.n_v, self.width),
            "ssm_conv1d.weight": (channels, self._number("ssm.conv_kernel")),
            "ssm_dt.bias": (self.n_v,),
            "ssm_a": (self.n_v,),
            "ssm_norm.weight": (inner // self.n_v,),
            "ssm_out.weight": (self.width, inner),
        }

    def _norms(self) -> Shapes:
        return {"attn_norm.weight": (self.width,), "post_attention_norm.weight": (self.width,)}

    def feed_forward(self) -> Shapes:
        if self._arch == "qwen35":
            return self._dense("", self._number("feed_forward_length"))
        n_expert, n_ff = self._number("expert_count"), self._number("expert_feed_forward_length")
        experts = {name: (n_expert, *shape) for name, shape in self._dense("_exps", n_ff).items()}
        shared = self._dense("_shexp", self._number("expert_shared_feed_forward_length"))
        gates: Shapes = {
            "ffn_gate_inp.weight": (n_expert, self.width),
            "ffn_gate_inp_shexp.weight": (self.width,),
        }
        return experts | shared | gates

    def _dense(self, suffix: str, n_ff: int) -> Shapes:
        return {
            f"ffn_gate{suffix}.weight": (n_ff, self.width),
            f"ffn_up{suffix}.weight": (n_ff, self.width),
            f"ffn_down{suffix}.weight": (self.width, n_ff),
        }

    def mtp_block(self) -> Shapes:
        return {
            "nextn.eh_proj.weight": (self.width, 2 * self.width),
            "nextn.enorm.weight": (self.width,),
            "nextn.hnorm.weight": (self.width,),
        }
