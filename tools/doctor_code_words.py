"""Code words: several conversations at once, each told its own word; none may learn another's.

Runs the whole engine with the model's own tokenizer: the answers together must be those alone.
"""

from collections.abc import Sequence

from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.limits import share_context
from gguf_hybrid.engine.options import EngineOptions
from gguf_hybrid.engine.request import Done, Event, Failed, Request
from gguf_hybrid.errors import RequestError
from gguf_hybrid.memory.sequence_file import SequenceFormat
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.vocab import SamplingVocab
from gguf_hybrid.text.stop import TextReader
from gguf_hybrid.text.tokenizer import Tokenizer

from .doctor_laws import promises_bits
from .doctor_report import Finding, judged

WORDS = ("copper", "violet", "harbor", "walnut")
QUESTION = "The code word is {word}. Remember it. Question: what is the code word? The code word is"
N_PREDICT = 8
N_CTX = 256


class CodeWords:
    """One question for each word, asked alone and all at once."""

    def __init__(self, model: Qwen35, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._bits_promised = promises_bits(model.backend)
        self._vocab = SamplingVocab(
            [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)],
            tokenizer.eog_ids,
            lambda text: tokenizer.encode(text, parse_special=False),
        )

    def finding(self, note: str) -> Finding:
        try:
            alone = [self._answers([word])[0] for word in WORDS]
            together = self._answers(WORDS)
        except RequestError as error:
            return judged("code words stay apart", False, f"{note}: {error}")
        changed = [w for w, a, b in zip(WORDS, alone, together, strict=True) if a != b]
        answers = dict(zip(WORDS, together, strict=True))
        leaked = [word for word in changed if _names_another(answers[word], word)]
        n_known = sum(word in text for word, text in answers.items())
        detail = f"{note}, {len(WORDS)} conversations at once, {n_known} repeat their word"
        if changed:
            detail += f"; answers changed by company: {', '.join(changed)}"
        if leaked:
            detail += f"; answers with another's word: {', '.join(leaked)}"
        return judged(
            "code words stay apart", not (leaked or changed and self._bits_promised), detail
        )

    def _answers(self, words: Sequence[str]) -> list[str]:
        """Greedy answers of one engine; RequestError if one fails."""
        engine = self._engine()
        for i, word in enumerate(words):
            engine.submit([self._request(i, word)])
        events: list[Event] = []
        while engine.is_busy:
            events += engine.step()
        for event in events:
            if isinstance(event, Failed):
                raise event.error
        texts = {event.id: event.text for event in events if isinstance(event, Done)}
        return [texts[i] for i in range(len(words))]

    def _engine(self) -> Engine:
        layout = SequenceFormat.of(self._model.config, "f16", "doctor")
        n = len(WORDS)
        limits = share_context(N_CTX * n, n, False, self._model.config.n_ctx_train)
        options = EngineOptions(
            limits=limits, layout=layout, eog_ids=frozenset(), cache_ram_nbytes=0
        )
        return Engine(self._model, options)

    def _request(self, id: int, word: str) -> Request:
        prompt = self._tokenizer.encode(QUESTION.format(word=word))
        sampler = Sampler(SamplingParams(temperature=0.0), self._vocab)
        reader = TextReader(self._tokenizer)
        return Request(id, tuple(prompt), sampler, reader, n_predict=N_PREDICT)


def _names_another(text: str, word: str) -> bool:
    return any(other in text for other in WORDS if other != word)
