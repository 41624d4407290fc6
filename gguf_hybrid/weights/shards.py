"""File names of split models: ``NAME-00002-of-00003.gguf`` is shard 1 (counted from 0) of three."""

import re
from pathlib import Path

from gguf_hybrid.errors import GGUFError

SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shard_paths(path: Path, count: int) -> list[Path]:
    """All ``count`` shards of the set that ``path`` belongs to, in order; all of them exist.

    Raises GGUFError if the name of ``path`` does not follow the pattern or a shard is missing.
    """
    match = SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise GGUFError(
            f"{path}: one of {count} shards, but not named NAME-NNNNN-of-{count:05}.gguf"
        )
    names = (f"{match['prefix']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1))
    paths = [path.with_name(name) for name in names]
    missing = [p for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise GGUFError(f"{path}: shard {missing[0].name}{more} is missing")
    return paths
