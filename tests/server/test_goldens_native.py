"""llama-server's recorded answers on its native routes, replayed on a real server."""

import pytest

from .golden_servers import Servers, check_golden
from .goldens import Case, cases, known_cases

TOPICS = (
    "api_key",
    "api_prefix",
    "apply_template",
    "cache",
    "completion",
    "completion_errors",
    "concurrency",
    "cors",
    "grammar",
    "health",
    "logit_bias",
    "lora",
    "metrics",
    "models",
    "moe",
    "n_choices",
    "not_found",
    "output_options",
    "probabilities",
    "prompt_forms",
    "props",
    "rerank",
    "sampling",
    "slot_files",
    "slots",
    "stop",
    "tokenize",
)
CASES = cases(*TOPICS)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_native_golden(case: Case, servers: Servers) -> None:
    check_golden(case, servers)


def test_deviations_name_cases_that_exist() -> None:
    all_topics = {topic for topic, _ in known_cases()}
    recorded = {(case.topic, case.name) for case in cases(*sorted(all_topics))}
    assert known_cases() <= recorded
