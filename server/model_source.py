"""From ``-m``, ``-hf`` or ``--demo`` to the path of a file on disk."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import ConfigError

from .config import ModelSource

_DEFAULT_QUANT = "Q4_K_M"
_LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


def find_model(source: ModelSource) -> str:
    """A path that can be opened; downloads what ``-hf`` names unless it is in the cache.

    Raises ConfigError with the flag and what is wrong about its value.
    """
    if source.path is not None:
        if not Path(source.path).is_file():
            raise ConfigError(f"error: -m {source.path}: no such file")
        return source.path
    if source.hf_repo is not None:
        return _from_hub(source, source.hf_repo)
    return str(demo_path())


def choose_file(names: Sequence[str], quant: str | None) -> str | None:
    """The file of a repository that ``quant`` means, compared without case.

    Without one: Q4_K_M, else the first model of the repository. Of a split model the first shard.
    """
    models = [
        name
        for name in sorted(names)
        if name.endswith(".gguf")
        and "mmproj" not in Path(name).name.lower()
        and not _LATER_SHARD.search(name)
    ]
    wanted = (quant or _DEFAULT_QUANT).lower()
    named = [name for name in models if _quant_pattern(wanted).search(Path(name).name.lower())]
    if named:
        return named[0]
    return models[0] if models and quant is None else None


def _quant_pattern(quant: str) -> re.Pattern[str]:
    """``quant`` as a word of a file name: Q4_K must not find Q4_K_M."""
    return re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?:-\d{{5}}-of-\d{{5}})?\.gguf$")


def _from_hub(source: ModelSource, repo: str) -> str:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, quant = repo.partition(":")
    cache = os.environ.get("LLAMA_CACHE")
    try:
        if source.offline:
            folder = snapshot_download(name, local_files_only=True, cache_dir=cache)
            present = [str(p.relative_to(folder)) for p in Path(folder).rglob("*.gguf")]
            return str(Path(folder) / _chosen(source, present, repo, quant))
        api = HfApi(token=source.hf_token)
        chosen = _chosen(source, api.list_repo_files(name), repo, quant)
        paths = [
            hf_hub_download(name, shard, token=source.hf_token, cache_dir=cache)
            for shard in shard_names(chosen)
        ]
        return paths[0]
    except LocalEntryNotFoundError as error:
        raise ConfigError(f"error: -hf {repo}: not in the cache, and --offline is set") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"error: -hf {repo}: {reason}") from error


def _chosen(source: ModelSource, names: Sequence[str], repo: str, quant: str) -> str:
    if source.hf_file is not None:
        if source.hf_file not in names:
            raise ConfigError(f"error: -hff {source.hf_file}: not a file of {repo}")
        return source.hf_file
    chosen = choose_file(names, quant or None)
    if chosen is None:
        raise ConfigError(f"error: -hf {repo}: the repository has no such GGUF")
    return chosen


def shard_names(first: str) -> list[str]:
    """All shards of a split model, of which ``first`` is the first; else just the file."""
    found = re.search(r"-00001-of-(\d{5})\.gguf$", first)
    if not found:
        return [first]
    total = int(found[1])
    stem = first[: found.start()]
    return [f"{stem}-{i:05d}-of-{total:05d}.gguf" for i in range(1, total + 1)]


def cached_models() -> list[str]:
    """``USER/REPO:FILE`` of every GGUF in the Hugging Face cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(os.environ.get("LLAMA_CACHE")).repos
    except CacheNotFound:
        return []
    return sorted(
        f"{repo.repo_id}:{file.file_name}"
        for repo in repos
        for revision in repo.revisions
        for file in revision.files
        if file.file_name.endswith(".gguf")
    )
