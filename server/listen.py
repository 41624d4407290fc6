"""Where the server listens: TCP addresses, UNIX sockets, TLS."""

import socket
import ssl

from aiohttp import web

from gguf_hybrid.errors import ConfigError

from .config import ServerConfig


async def start_sites(runner: web.AppRunner, config: ServerConfig) -> list[str]:
    """Bind every ``--host``; the URLs that answer. ConfigError names the address that cannot."""
    context = _tls(config)
    urls: list[str] = []
    for host in config.hosts:
        try:
            if host.endswith(".sock"):
                await web.UnixSite(runner, host, ssl_context=context).start()
                urls.append(f"unix:{host}")
            else:
                urls.append(await _start_tcp(runner, config, host, context))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"error: cannot listen on {host}:{config.port}: {error}") from error
    return urls


async def _start_tcp(
    runner: web.AppRunner, config: ServerConfig, host: str, context: ssl.SSLContext | None
) -> str:
    site = web.TCPSite(
        runner,
        host,
        config.port,
        ssl_context=context,
        reuse_address=True,
        reuse_port=config.reuse_port or None,
    )
    await site.start()
    scheme = "https" if context else "http"
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{_bound_port(site)}"


def _bound_port(site: web.TCPSite) -> int:
    """The real port, which ``--port 0`` leaves open."""
    server = site._server
    assert server is not None
    sockets: list[socket.socket] = list(server.sockets)  # type: ignore[attr-defined]
    port: int = sockets[0].getsockname()[1]
    return port


def _tls(config: ServerConfig) -> ssl.SSLContext | None:
    if config.ssl_cert_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.ssl_cert_file, config.ssl_key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"error: --ssl-cert-file {config.ssl_cert_file}: {error}") from error
    return context
