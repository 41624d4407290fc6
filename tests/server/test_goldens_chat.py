"""llama-server's recorded answers on the chat, OpenAI, Anthropic and infill routes, replayed."""

import pytest

from .golden_servers import Servers, check_golden
from .goldens import Case, cases

TOPICS = (
    "chat",
    "embeddings",
    "infill",
    "messages",
    "reasoning",
    "response_format",
    "responses",
    "tools",
    "v1_completions",
)
CASES = cases(*TOPICS)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_chat_golden(case: Case, servers: Servers) -> None:
    check_golden(case, servers)
