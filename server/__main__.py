"""``gguf-hybrid-server``: llama-server's command line in, exit code out."""

import asyncio
import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from gguf_hybrid.errors import ConfigError

from . import logs
from .args import Arguments, bash_completion, parse, usage
from .context import BUILD_INFO, Runtime
from .model_source import cached_models, find_model
from .process import OnFailure, Process

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, *, demo_without_model: bool = False) -> int:
    """Run the server; ``demo_without_model`` lets the embedded model stand in for a missing one."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        arguments = parse(words, demo_without_model=demo_without_model)
        if arguments.server.source.hf_repo is None and not arguments.action:
            find_model(arguments.server.source)  # a wrong path should end the program at once
        if not arguments.action:
            logs.set_up(arguments.server.log)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.action:
        print(_printed(arguments.action))
        return 0
    for warning in arguments.warnings:
        log.warning("%s", warning)
    if arguments.server.source.demo:
        log.info("serving the embedded demo model")
    code = asyncio.new_event_loop().run_until_complete(_served(arguments))
    logging.shutdown()
    sys.stdout.flush()
    # Threads may still compute, compile or download, which nothing can interrupt: do not wait.
    os._exit(code)


async def _served(arguments: Arguments) -> int:
    return await Process(arguments, load_runtime).run()


async def load_runtime(arguments: Arguments, on_failure: OnFailure) -> Runtime:
    """Find the file and load it. What imports MLX is imported here, off the event loop."""
    path = await asyncio.to_thread(find_model, arguments.server.source)
    module = await asyncio.to_thread(importlib.import_module, "gguf_hybrid.runtime")
    runtime: Runtime = await module.Runtime.load(replace(arguments.runtime, model=path), on_failure)
    return runtime


def _printed(action: str) -> str:
    match action:
        case "help":
            return usage()
        case "version":
            version = importlib.metadata.version("gguf-hybrid")
            return f"version: {version} ({BUILD_INFO})"
        case "completion_bash":
            return bash_completion()
        case "cache_list":
            return "\n".join(cached_models())
        case _:
            from gguf_hybrid.runtime import list_devices

            return "\n".join(["Available devices:", *(f"  {name}" for name in list_devices())])


if __name__ == "__main__":
    sys.exit(main())
