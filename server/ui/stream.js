// Reads a streamed chat completion: bytes to events, events to one message.

/** The data of each frame of a text/event-stream body; comments are skipped. */
export async function* frames(body) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of chunks(body)) {
    text += decoder.decode(bytes, { stream: true });
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: "));
      if (data.length) yield data.map((line) => line.slice(6)).join("\n");
    }
  }
}

/** Chunks of a ReadableStream; not every browser can iterate one. */
async function* chunks(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}

/** A message nothing has been added to. */
export function emptyMessage() {
  return { role: "assistant", content: "", reasoning_content: "", tool_calls: [] };
}

/** Add one chunk's delta to a message. */
export function fold(message, chunk) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  message.reasoning_content += delta.reasoning_content ?? "";
  message.content += delta.content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = (message.tool_calls[piece.index] ??= {
      id: piece.id, type: "function", function: { name: "", arguments: "" },
    });
    call.function.name += piece.function?.name ?? "";
    call.function.arguments += piece.function?.arguments ?? "";
  }
}

/**
 * Ask for a chat completion and call `seen(message, chunk)` for every chunk.
 * Throws what the server answered instead, or an AbortError.
 */
export async function chat(request, headers, signal, seen) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new Error(await failure(response));
  const message = emptyMessage();
  for await (const data of frames(response.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    fold(message, chunk);
    seen(message, chunk);
  }
  return message;
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}
