"""The prompt of a request, in all its forms, as token ids.

A list is one prompt when it mixes texts and ids, several prompts when its elements are prompts
themselves; ``["a", "b"]`` is two, ``["a", 5]`` is one.
"""

from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.tokenizer import Tokenizer

_WRONG = (
    '"prompt" elements must be a string, a list of tokens,'
    " a JSON object containing a prompt string, or a list of mixed strings & tokens."
)
_NO_MEDIA = "Multimodal data provided, but model does not support multimodal requests."


def tokenize_prompts(tokenizer: Tokenizer, prompt: object) -> list[tuple[int, ...]]:
    """Ids of every prompt in ``prompt``. RequestError (400) for other types and unknown ids."""
    if prompt == []:
        raise RequestError('"prompt" must not be empty')
    return [_tokenize(tokenizer, one) for one in _split(prompt)]


def _split(prompt: object) -> list[object]:
    if not isinstance(prompt, list):
        return [prompt]
    if all(isinstance(part, str) for part in prompt):
        return list(prompt)
    if all(isinstance(part, str) or _is_id(part) for part in prompt):
        return [prompt]
    return list(prompt)


def _tokenize(tokenizer: Tokenizer, prompt: object) -> tuple[int, ...]:
    ids = tokenizer.encode_prompt(_parts(prompt))
    tokenizer.require_ids(ids)
    return tuple(ids)


def _parts(prompt: object) -> str | list[str | int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(p, str) or _is_id(p) for p in prompt):
        return prompt
    if isinstance(prompt, dict) and isinstance(text := prompt.get("prompt_string"), str):
        if "multimodal_data" in prompt:
            raise RequestError(_NO_MEDIA)
        return text
    raise RequestError(_WRONG)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
