// How a message looks. Texts are set as text, never as markup.

const NAMES = { user: "You", assistant: "Model", tool: "Tool", system: "System" };

/** An article for a message; `update` shows its present state. */
export class MessageView {
  constructor(message) {
    this.element = element("article", message.role);
    this.thought = element("details");
    this.thought.append(element("summary", "", "Thinking"), element("div"));
    this.content = element("div", "content");
    this.calls = element("div");
    this.note = element("p", "note");
    this.element.append(
      element("h2", "", NAMES[message.role] ?? message.role),
      this.thought, this.content, this.calls, this.note,
    );
    this.update(message);
  }

  update(message) {
    this.thought.hidden = !message.reasoning_content;
    this.thought.lastChild.textContent = message.reasoning_content ?? "";
    this.content.textContent = message.content;
    const calls = message.tool_calls ?? [];
    while (this.calls.children.length < calls.length) this.calls.append(callBox());
    calls.forEach((call, i) => {
      const name = `${call.function.name}(${call.function.arguments})`;
      this.calls.children[i].firstChild.textContent = name;
    });
  }

  /** Let the user type what each call returned; `answered` gets the texts. */
  askResults(message, answered) {
    const boxes = message.tool_calls.map((call, i) => {
      const box = element("textarea");
      box.rows = 1;
      box.ariaLabel = box.placeholder = `Result of ${call.function.name}`;
      this.calls.children[i].append(box);
      return box;
    });
    const button = element("button", "", "Send results");
    button.onclick = () => {
      button.remove();
      for (const box of boxes) box.disabled = true;
      answered(boxes.map((box) => box.value));
    };
    this.calls.append(button);
  }

  fail(text) {
    this.element.append(element("p", "error", text));
  }
}

function callBox() {
  const box = element("div", "call");
  box.append(element("pre"));
  return box;
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}
