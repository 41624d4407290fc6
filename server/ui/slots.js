// The strip that shows what every slot is doing, and how many requests wait.

const PERIOD_MS = 1000;

/** Keep `strip` up to date while the page is seen. `getHeaders()` carries the key. */
export function watch(strip, props, getHeaders) {
  let before = new Map();
  let then = performance.now();
  async function refresh() {
    if (document.hidden) return;
    const slots = await get("slots", getHeaders());
    const now = performance.now();
    const queue = props.endpoint_metrics ? await queued(getHeaders()) : null;
    strip.replaceChildren(
      ...slots.map((slot) => line(slot, before.get(slot.id), (now - then) / 1000)),
      span(queue === null ? "queue: start with --metrics" : `queue: ${queue}`),
    );
    before = new Map(slots.map((slot) => [slot.id, decoded(slot)]));
    then = now;
  }
  async function loop() {
    try {
      await refresh();
    } catch (problem) {
      strip.replaceChildren(span(`slots: ${problem.message}`));
    }
    setTimeout(loop, PERIOD_MS);
  }
  loop();
}

function line(slot, before, seconds) {
  const text = [`slot ${slot.id}: ${slot.is_processing ? "busy" : "idle"}`];
  if (slot.n_prompt_tokens !== undefined) text.push(`${slot.n_prompt_tokens}/${slot.n_ctx} tokens`);
  const made = decoded(slot) - (before ?? 0);
  if (slot.is_processing && made > 0) text.push(`${(made / seconds).toFixed(1)} t/s`);
  return span(text.join(", "), slot.is_processing ? "busy" : "");
}

function decoded(slot) {
  return slot.next_token?.[0]?.n_decoded ?? 0;
}

function span(text, className = "") {
  const element = document.createElement("span");
  element.textContent = text;
  element.className = className;
  return element;
}

async function queued(headers) {
  const response = await fetch("metrics", { headers });
  const found = /^llamacpp:requests_deferred (\S+)/m.exec(await response.text());
  return found ? Number(found[1]) : 0;
}

/** A JSON answer; throws the server's message otherwise. */
export async function get(path, headers) {
  const response = await fetch(path, { headers });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error?.message ?? response.statusText);
  return body;
}
