// The page: one conversation, kept in memory, and the controls around it.

import { get, watch } from "./slots.js";
import * as settingsOf from "./settings.js";
import { chat } from "./stream.js";
import { MessageView } from "./view.js";

const at = (id) => document.getElementById(id);
let settings = settingsOf.load();
let messages = [];
let running = null;

async function start() {
  try {
    const props = await get("props", settingsOf.headers(settings));
    at("model").textContent = props.model_alias;
    document.title = props.model_alias;
    if (props.endpoint_slots) watch(at("slots"), props, () => settingsOf.headers(settings));
  } catch (problem) {
    at("slots").textContent = problem.message;
  }
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) say(asked);
}

function show(message) {
  const view = new MessageView(message);
  at("log").append(view.element);
  view.element.scrollIntoView({ block: "end" });
  return view;
}

function say(text) {
  messages.push({ role: "user", content: text });
  show(messages.at(-1));
  reply();
}

async function reply() {
  const view = show({ role: "assistant", content: "" });
  const conversation = messages;
  running = new AbortController();
  setBusy(true);
  let latest = null;
  try {
    const request = { ...settingsOf.requestFields(settings), messages: withSystem() };
    await chat(request, settingsOf.headers(settings), running.signal, (message, chunk) => {
      latest = message;
      showPiece(view, message, chunk);
    });
  } catch (problem) {
    if (problem.name !== "AbortError") view.fail(problem.message);
    if (latest) latest.tool_calls = []; // a call that was cut off cannot be sent back
  }
  if (conversation !== messages) return; // a new chat was begun meanwhile
  running = null;
  setBusy(false);
  if (latest) keep(view, latest);
}

function showPiece(view, message, chunk) {
  const log = at("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  view.update(message);
  if (chunk.timings) {
    const { predicted_n, predicted_per_second, cache_n, prompt_n } = chunk.timings;
    view.note.textContent =
      `${predicted_n} tokens, ${predicted_per_second.toFixed(1)} t/s, ` +
      `prompt ${prompt_n} read + ${cache_n} cached`;
  }
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** A finished (or stopped) reply becomes part of the conversation. */
function keep(view, message) {
  const kept = { ...message };
  if (!kept.reasoning_content) delete kept.reasoning_content;
  if (!kept.tool_calls.length) delete kept.tool_calls;
  messages.push(kept);
  if (!kept.tool_calls) return;
  view.askResults(kept, (texts) => {
    texts.forEach((content, i) => {
      messages.push({ role: "tool", tool_call_id: kept.tool_calls[i].id, content });
      show(messages.at(-1));
    });
    reply();
  });
}

function withSystem() {
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  return [...system, ...messages];
}

function setBusy(isBusy) {
  at("send").hidden = isBusy;
  at("stop").hidden = !isBusy;
  if (!isBusy) at("text").focus();
}

function startAnew() {
  running?.abort();
  running = null;
  setBusy(false);
  messages = [];
  at("log").replaceChildren();
  at("text").focus();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || running) return;
  at("text").value = "";
  say(text);
});
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !at("settings").open) running.abort();
});
at("stop").addEventListener("click", () => running?.abort());
at("new").addEventListener("click", startAnew);
at("open-settings").addEventListener("click", () => {
  settingsOf.edit(at("settings"), (changed) => { settings = changed; });
});
start();
