"""Where the prompt of a chat is worth a checkpoint: token counts in front of its turns.

Templates rewrite old turns (they drop the thinking of earlier replies), so the next prompt of a
conversation agrees with this one up to where a turn's text begins, not up to its end.
"""

from gguf_hybrid.text.tags import THINK
from gguf_hybrid.text.template import ChatPrompt, ChatTemplate

from .context import Loaded

_TURN = "<|im_start|>"


def chat_cuts(model: Loaded, prompt: ChatPrompt, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Positions before the first user turn (the end of system text and tools), the last, the reply.

    Every turn opens with a special token, which the text and the ids hold equally often.
    """
    turn_id = model.token_id(_TURN)
    if turn_id is None:
        return ()
    positions = [i for i, token in enumerate(ids) if token == turn_id]
    users = _user_turns(model.runtime.template, prompt.text)
    cuts = {positions[turn] for turn in (*users[:1], *users[-1:]) if turn < len(positions)}
    if prompt.reply_prefix.startswith(THINK):
        cuts.add(len(ids) - len(model.tokenizer.encode(prompt.reply_prefix)))
    return tuple(sorted(cuts))


def _user_turns(template: ChatTemplate, text: str) -> list[int]:
    """Numbers of the users' turns, counted through the prompt."""
    users: list[int] = []
    n_turns, at = 0, text.find(_TURN)
    while at >= 0:
        if _role(template, text, at) == "user":
            users.append(n_turns)
        n_turns, at = n_turns + 1, text.find(_TURN, at + 1)
    return users


def _role(template: ChatTemplate, text: str, at: int) -> str | None:
    for role, opening in template.message_delimiters:
        if text.startswith(opening, at):
            return role
    return None
