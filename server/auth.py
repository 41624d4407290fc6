"""API keys: which forms carry one and which paths need none."""

import hmac
from collections.abc import Sequence

from multidict import CIMultiDictProxy

from .web_page import PAGE_PATHS

_BEARER = "Bearer "
PUBLIC_PATHS = frozenset({"/health", "/v1/health", *PAGE_PATHS})


def has_valid_key(headers: CIMultiDictProxy[str], keys: Sequence[str]) -> bool:
    """Whether the request carries one of ``keys``.

    ``Authorization: Bearer K`` (case-sensitive) or ``Authorization: K``, else ``X-Api-Key: K``;
    the second is looked at only when the first is absent. All keys are compared in full, so the
    time taken says nothing about them.
    """
    given = _given_key(headers).encode(errors="surrogateescape")
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    return any(matches)


def _given_key(headers: CIMultiDictProxy[str]) -> str:
    authorization = headers.get("Authorization", "")
    if authorization:
        return authorization.removeprefix(_BEARER)
    return headers.get("X-Api-Key", "")
