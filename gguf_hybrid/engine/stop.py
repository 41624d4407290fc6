"""When a request ends: llama-server's rules in llama-server's order (contract, 8.5).

A stop string is found by the request's reader; later rules override earlier ones where the
reference lets them: a full context beats a stop string, an end token beats everything.
"""

from dataclasses import dataclass

from .request import Piece, Request


@dataclass(frozen=True, slots=True)
class Stop:
    """``type`` is "eos", "limit" or "word"."""

    type: str
    truncated: bool = False


def stop_after_token(
    request: Request,
    piece: Piece,
    *,
    is_eog: bool,
    n_decoded: int,
    n_tokens: int,
    n_ctx: int,
    predicted_ms: float,
) -> Stop | None:
    """Whether the token just sampled is the last one.

    ``n_decoded`` counts it, ``n_tokens`` (tokens the slot has absorbed) does not.
    """
    truncated = n_tokens + 1 >= n_ctx
    if is_eog:
        return Stop("eos", truncated)
    if truncated:
        return Stop("limit", truncated)
    if piece.stop_word is not None:
        return Stop("word")
    over_budget = request.n_predict >= 0 and n_decoded >= request.n_predict
    if over_budget or piece.under_indented or _out_of_time(request, piece, predicted_ms):
        return Stop("limit")
    return None


def _out_of_time(request: Request, piece: Piece, predicted_ms: float) -> bool:
    """The time limit is looked at only when a newline has just been sent."""
    limit = request.t_max_predict_ms
    return 0 < limit < predicted_ms and "\n" in piece.text
