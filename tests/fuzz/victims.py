"""What is done with a damaged file: exactly what serving, converting or restoring does with it."""

import contextlib
import io
from pathlib import Path

import numpy as np
from gguf_hybrid.tools import convert

from gguf_hybrid.backend.select import create_backend
from gguf_hybrid.demo import demo_path
from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.request import Done, Failed, Request
from gguf_hybrid.errors import GgufHybridError
from gguf_hybrid.memory.sequence_file import pack, unpack
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime import OpenModel, Runtime
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.text.stop import TextReader

ANSWERED = "answered"
N_PREDICT = 3
CONVERSATION = [{"role": "user", "content": "Hello, how are you?"}]


def load_and_answer(path: Path) -> str:
    """Serve a GGUF file to one chat request."""
    try:
        runtime, engine = _loaded(path)
        prompt = runtime.tokenizer.encode(runtime.template.render(CONVERSATION)) or [0]
        return _answer(runtime, engine, prompt[:100])
    except GgufHybridError as error:
        return f"refused: {error}"


def convert_checkpoint(path: Path) -> str:
    """Convert the folder ``path`` to a GGUF file beside it."""
    out = path.with_name(path.name + ".gguf")
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = convert.main([str(path), "--outfile", str(out), "--outtype", "bf16"])
    out.unlink(missing_ok=True)
    return ANSWERED if code == 0 else f"refused: {said.getvalue().strip()}"


def restore(path: Path) -> str:
    """Restore a slot file of the demo model and go on with it."""
    try:
        runtime, engine = _loaded(demo_path())
        saved = unpack(path.read_bytes(), runtime.sequence_format())
        if not engine.load_slot(0, saved):
            return "refused: it does not fit"
        return _answer(runtime, engine, [*saved.tokens, 5])
    except GgufHybridError as error:
        return f"refused: {error}"


def save_slot(path: Path) -> str:
    """Make a sound slot file of the demo model."""
    runtime, engine = _loaded(demo_path())
    tokens = np.random.default_rng(0).integers(0, 4000, 70).tolist()
    _answer(runtime, engine, tokens)
    path.write_bytes(pack(engine.save_slot(0), runtime.sequence_format()))
    return ANSWERED


def _loaded(path: Path) -> tuple[Runtime, Engine]:
    config = RuntimeConfig(model=str(path), n_ctx=512, n_parallel=1, n_threads=1, device="cpu")
    runtime = Runtime(OpenModel.open(config), config)
    backend = create_backend(runtime.model_config, config)
    model = Qwen35(runtime.model_config, runtime.opened.tensors.trunk, backend)
    return runtime, Engine(model, runtime.engine_options())


def _answer(runtime: Runtime, engine: Engine, prompt: list[int]) -> str:
    sampler = Sampler(SamplingParams(seed=1), runtime.sampling_vocab)
    reader = TextReader(runtime.tokenizer)
    engine.submit([Request(1, tuple(prompt), sampler, reader, n_predict=N_PREDICT)])
    events = []
    while engine.is_busy:
        events += engine.step()
    end = events[-1]
    if isinstance(end, Failed):
        return f"failed: {end.error}"
    assert isinstance(end, Done)
    return ANSWERED
