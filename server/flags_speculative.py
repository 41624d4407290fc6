"""Flags of speculative decoding. Drafting with a second model is refused, the rest is accepted."""

from .flag_values import at_least, choice, number, spec_types
from .flags import Flag, ignored, refused, removed, switch, value

_DRAFT_MODEL = "drafting with a second model is not supported"
_BENCHMARK = "synthetic acceptance is a benchmark of the reference"
_NGRAM = tuple(
    ignored(f"--spec-ngram-{kind}-{name}", "N")
    for kind, names in (
        ("mod", ("n-min", "n-max", "n-match")),
        ("simple", ("size-n", "size-m", "min-hits")),
        ("map-k", ("size-n", "size-m", "min-hits")),
        ("map-k4v", ("size-n", "size-m", "min-hits")),
    )
    for name in names
)

SPECULATIVE_FLAGS: tuple[Flag, ...] = (
    value("--spec-type", "spec.types", spec_types, "LIST", "none, draft-mtp", "SPEC_TYPE"),
    switch("--spec-default", "spec.default", "the default kind of drafting without a model"),
    value(
        "--spec-draft-n-max",
        "spec.n_max",
        at_least(0, "spec-draft-n-max"),
        "N",
        "tokens to draft (default 3)",
        "SPEC_DRAFT_N_MAX",
    ),
    value(
        "--spec-draft-n-min",
        "spec.n_min",
        at_least(0, "spec-draft-n-min"),
        "N",
        "shortest draft worth verifying (default 0)",
        "SPEC_DRAFT_N_MIN",
    ),
    value(
        "--spec-draft-p-min --draft-p-min",
        "spec.p_min",
        number,
        "P",
        "probability below which drafting stops (default 0)",
        "SPEC_DRAFT_P_MIN",
    ),
    value(
        "--spec-draft-sampling",
        "spec.sampling",
        choice("--spec-draft-sampling", "greedy", "probabilistic"),
        "S",
        "how drafts are accepted (default greedy)",
        "SPEC_DRAFT_SAMPLING",
    ),
    ignored("--spec-draft-p-split --draft-p-split", "P", "SPEC_DRAFT_P_SPLIT"),
    ignored(
        "--spec-draft-backend-sampling",
        env="SPEC_DRAFT_BACKEND_SAMPLING",
        off="--no-spec-draft-backend-sampling",
    ),
    ignored("--spec-draft-type-k -ctkd --cache-type-k-draft", "TYPE", "SPEC_DRAFT_CACHE_TYPE_K"),
    ignored("--spec-draft-type-v -ctvd --cache-type-v-draft", "TYPE", "SPEC_DRAFT_CACHE_TYPE_V"),
    ignored("--ctx-size-draft -cd", "N"),
    ignored("--spec-draft-threads -td --threads-draft", "N"),
    ignored("--spec-draft-threads-batch -tbd --threads-batch-draft", "N"),
    ignored("--spec-draft-cpu-mask -Cd --cpu-mask-draft", "M"),
    ignored("--spec-draft-cpu-range -Crd --cpu-range-draft", "LO-HI"),
    ignored("--spec-draft-cpu-strict --cpu-strict-draft", "0|1"),
    ignored("--spec-draft-prio --prio-draft", "N"),
    ignored("--spec-draft-poll --poll-draft", "0|1"),
    ignored("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", "M"),
    ignored("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", "0|1"),
    ignored("--spec-draft-prio-batch --prio-batch-draft", "N"),
    ignored("--spec-draft-poll-batch --poll-batch-draft", "0|1"),
    ignored("--spec-draft-override-tensor -otd --override-tensor-draft", "PATTERN=TYPE"),
    ignored("--spec-draft-cpu-moe -cmoed --cpu-moe-draft", env="SPEC_DRAFT_CPU_MOE"),
    ignored(
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft",
        "N",
        "SPEC_DRAFT_N_CPU_MOE",
    ),
    ignored("--spec-draft-device -devd --device-draft", "LIST"),
    ignored(
        "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft", "N", "N_GPU_LAYERS_DRAFT"
    ),
    *_NGRAM,
    refused("--spec-draft-model -md --model-draft", "FILE", _DRAFT_MODEL, "SPEC_DRAFT_MODEL"),
    refused(
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft", "REPO", _DRAFT_MODEL, "SPEC_DRAFT_HF_REPO"
    ),
    refused("--spec-synth-len", "L", _BENCHMARK, "SPEC_SYNTH_LEN"),
    refused("--spec-synth-rates", "LIST", _BENCHMARK, "SPEC_SYNTH_RATES"),
    removed("--draft --draft-n --draft-max", "use --spec-draft-n-max", "DRAFT_MAX", shown="N"),
    removed("--draft-min --draft-n-min", "use --spec-draft-n-min", "DRAFT_MIN", shown="N"),
    removed("--spec-ngram-size-n", "use the respective --spec-ngram-*-size-n", shown="N"),
    removed("--spec-ngram-size-m", "use the respective --spec-ngram-*-size-m", shown="N"),
    removed("--spec-ngram-min-hits", "use the respective --spec-ngram-*-min-hits", shown="N"),
)
