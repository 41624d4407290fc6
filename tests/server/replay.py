"""Sends the steps of a recorded case to a server and collects what comes back.

The recording format is described with the recordings (``tests/data/http/README.md``).
"""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .server_process import ServerProcess

Json = Any


def replay(server: ServerProcess, steps: list[Json]) -> list[Json]:
    """The answers, in the recorded form."""
    return [_replay_step(server, step) for step in steps]


def _replay_step(server: ServerProcess, step: Json) -> Json:
    if "parallel" in step:
        with ThreadPoolExecutor(len(step["parallel"])) as pool:
            answers = pool.map(lambda one: _replay_step(server, one), step["parallel"])
            return {"parallel": list(answers)}
    connection = server.connect()
    try:
        connection.putrequest(step["method"], step["path"], skip_accept_encoding=True)
        body = _body(step)
        headers = {**(step.get("headers") or {}), "Content-Length": str(len(body))}
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        answer = _read(server, step, response)
        answer["status"] = response.status
        answer["response_headers"] = dict(response.getheaders())
        return answer
    finally:
        connection.close()


def _body(step: Json) -> bytes:
    if "raw_body" in step:
        return str(step["raw_body"] or "").encode()
    return b"" if step.get("body") is None else json.dumps(step["body"]).encode()


def _read(server: ServerProcess, step: Json, response: http.client.HTTPResponse) -> Json:
    if response.getheader("Content-Type", "").startswith("text/event-stream"):
        return _read_stream(server, step, response)
    text = response.read().decode()
    if response.getheader("Content-Type", "").startswith("application/json") and text:
        return {"response_body": json.loads(text)}
    return {"response_body_text": text}


def _read_stream(server: ServerProcess, step: Json, response: http.client.HTTPResponse) -> Json:
    answer: Json = {"sse_events": []}
    events = answer["sse_events"]
    for event in _events(response):
        events.append(event)
        if len(events) == step.get("while_streaming_after_events"):
            answer["while_streaming"] = replay(server, step["while_streaming"])
        if len(events) == step.get("disconnect_after_events"):
            break
    return answer


def _events(response: http.client.HTTPResponse) -> Any:
    """Each frame as ``{"event"?, "data"}``, each comment as ``{"comment"}``."""
    fields: Json = {}
    while line := response.readline().decode():
        line = line.rstrip("\n")
        name, _, value = line.partition(":")
        if not line and fields:
            yield fields
            fields = {}
        elif line and not name:
            yield {"comment": value}
        elif line:
            value = value.removeprefix(" ")
            fields[name] = value if name == "event" or value == "[DONE]" else json.loads(value)
