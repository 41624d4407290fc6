"""Where the prompt of a chat is worth a checkpoint: token counts in front of its turns.

Templates rewrite old turns (they drop the thinking of earlier replies), so the next prompt of a
conversation agrees with this one up to a turn, not up to its end.
"""

from gguf_hybrid.text.template import ChatPrompt, ChatTemplate

from .context import Loaded

_TURN = "<|im_start|>"


def chat_cuts(model: Loaded, prompt: ChatPrompt, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Positions before the first user turn (the end of system text and tools), the last, the reply.

    Every turn opens with a special token, which the text and the ids hold equally often.
    """
    turn_id = model.token_id(_TURN)
    at = _turns(model.runtime.template, prompt)
    if turn_id is None or not at:
        return ()
    positions = [i for i, token in enumerate(ids) if token == turn_id]
    return tuple(sorted({positions[turn] for turn in at if turn < len(positions)}))


def _turns(template: ChatTemplate, prompt: ChatPrompt) -> set[int]:
    """Numbers of the turns that are worth a cut, counted through the prompt."""
    if not template.message_delimiters:
        return set()
    text = prompt.text
    reply = len(text) - len(prompt.generation_prompt)
    users: list[int] = []
    chosen: set[int] = set()
    n_turns, at = 0, text.find(_TURN)
    while at >= 0:
        if at == reply:
            chosen.add(n_turns)
        elif _role(template, text, at) == "user":
            users.append(n_turns)
        n_turns, at = n_turns + 1, text.find(_TURN, at + 1)
    return chosen | set(users[:1]) | set(users[-1:])


def _role(template: ChatTemplate, text: str, at: int) -> str | None:
    for role, opening in template.message_delimiters:
        if text.startswith(opening, at):
            return role
    return None
