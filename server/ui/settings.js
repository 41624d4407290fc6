// Settings: kept in the browser, empty ones leave the choice to the server.

const KEY = "gguf-hybrid";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const TEXTS = ["system", "tools", "key"];

export function load() {
  const defaults = { system: "", tools: "", key: "", thinking: true };
  try {
    return { ...defaults, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return defaults;
  }
}

/** What the settings add to a request. */
export function requestFields(settings) {
  const fields = { chat_template_kwargs: { enable_thinking: settings.thinking } };
  for (const name of NUMBERS) {
    if (Number.isFinite(settings[name])) fields[name] = settings[name];
  }
  if (settings.tools) fields.tools = JSON.parse(settings.tools);
  return fields;
}

export function headers(settings) {
  return settings.key ? { Authorization: `Bearer ${settings.key}` } : {};
}

/** Show the dialog; `saved` gets the new settings if they are kept. */
export function edit(dialog, saved) {
  const form = dialog.querySelector("form");
  const error = dialog.querySelector(".error");
  const fields = form.elements;
  const settings = load();
  for (const name of [...NUMBERS, ...TEXTS]) fields[name].value = settings[name] ?? "";
  fields.thinking.checked = settings.thinking;
  error.textContent = "";
  form.onsubmit = (event) => {
    if (event.submitter?.value !== "save") return;
    try {
      if (fields.tools.value.trim()) JSON.parse(fields.tools.value);
    } catch (problem) {
      error.textContent = `Tools are not JSON: ${problem.message}`;
      event.preventDefault();
      return;
    }
    const changed = { thinking: fields.thinking.checked };
    for (const name of TEXTS) changed[name] = fields[name].value.trim();
    for (const name of NUMBERS) {
      if (fields[name].value !== "") changed[name] = Number(fields[name].value);
    }
    localStorage.setItem(KEY, JSON.stringify(changed));
    saved(changed);
  };
  dialog.showModal();
}
