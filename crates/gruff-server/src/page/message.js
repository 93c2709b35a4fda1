// One message on the page.

import { codeBlock, Markdown } from "./markdown.js";
import { copy, el, icon, iconButton } from "./dom.js";
import { size } from "./files.js";

/** Characters of an attachment that its preview shows. */
const PREVIEW = 20_000;

/**
 * A message and what can be done with it. `actions` has `edit`, `regenerate` and `result`; `update` shows what has
 * come since, at most once a frame.
 */
export class MessageView {
  #waiting = false;

  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.root = el("article", { className: `message ${message.role}` });
    this.root.append(el("h3", { className: "hidden" }, { user: "You", assistant: "Model", tool: "Result of a tool" }[message.role]));
    if (message.role === "user") this.#user();
    else if (message.role === "assistant") this.#assistant();
    else this.root.append(el("pre", { className: "result", tabIndex: 0 }, message.text));
  }

  update() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.show();
    });
  }

  #user() {
    const { message, actions } = this;
    const files = (message.files ?? []).map((file) => {
      const shown = file.text.length > PREVIEW ? `${file.text.slice(0, PREVIEW)}\n…` : file.text;
      return el("details", { className: "file" }, el("summary", {}, icon("file"), el("span", {}, file.name), el("small", {}, size(file.text))), codeBlock(shown, ""));
    });
    const bubble = el("div", { className: "bubble" }, ...files, message.text && el("p", { className: "typed" }, message.text));
    const row = el("div", { className: "actions" }, copyButton(() => message.text), iconButton("edit", "Edit and send again", () => actions.edit(this)));
    this.root.append(bubble, row);
  }

  #assistant() {
    const { actions } = this;
    this.summary = el("span", { className: "summary-text" });
    this.reasoningBody = el("div", { className: "prose reasoning-body" });
    this.reasoning = el("details", { className: "reasoning", hidden: true }, el("summary", {}, icon("chevron"), this.summary), this.reasoningBody);
    this.answer = el("div", { className: "prose" });
    this.calls = el("div", { className: "calls" });
    this.fault = el("p", { className: "fault", hidden: true });
    this.figures = el("span", { className: "figures" });
    this.row = el(
      "div", { className: "actions" },
      copyButton(() => this.message.text),
      iconButton("again", "Answer again", () => actions.regenerate(this)),
      this.figures,
    );
    this.wait = el("p", { className: "wait", "aria-hidden": "true" }, el("i"), el("i"), el("i"));
    this.root.append(this.reasoning, this.answer, this.calls, this.wait, this.fault, this.row);
    this.thoughts = new Markdown(this.reasoningBody);
    this.prose = new Markdown(this.answer);
    this.show();
  }

  /** Shows an answer as it is now. */
  show() {
    const { message } = this;
    if (message.role !== "assistant") return;
    const thinking = message.running && message.reasoning && !message.text && !message.calls?.length;
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      this.thoughts.set(message.reasoning);
      const seconds = message.thought > 500 ? ` for ${duration(message.thought)}` : "";
      this.summary.textContent = thinking ? "Thinking…" : `Thought${seconds}`;
    }
    this.prose.set(message.text);
    this.#showCalls();
    this.root.classList.toggle("running", Boolean(message.running));
    this.root.setAttribute("aria-busy", String(Boolean(message.running)));
    this.wait.hidden = !message.running || Boolean(message.text) || Boolean(message.calls?.length);
    this.fault.hidden = !message.error;
    this.fault.textContent = message.error ?? "";
    this.row.hidden = Boolean(message.running);
    this.figures.textContent = figures(message);
    this.figures.title = details(message);
  }

  #showCalls() {
    const calls = this.message.calls ?? [];
    while (this.calls.children.length > calls.length) this.calls.lastChild.remove();
    calls.forEach((call, index) => {
      let card = this.calls.children[index];
      if (!card) {
        card = el("section", { className: "call" }, el("h4", {}, icon("tool"), el("span")), el("pre", { tabIndex: 0 }), el("div"));
        this.calls.append(card);
      }
      card.querySelector("h4 span").textContent = call.name;
      card.setAttribute("aria-label", `The model calls ${call.name}`);
      card.querySelector("pre").textContent = pretty(call.arguments);
      const asks = !this.message.running && !this.actions.answered(call);
      const place = card.lastChild;
      if (!asks) place.replaceChildren();
      else if (!place.children.length) place.append(this.#resultForm(call));
    });
  }

  #resultForm(call) {
    const area = el("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "What the tool gives" });
    const form = el("form", { className: "result-form" }, area, el("button", { className: "plain" }, "Give the result"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.actions.result(call, area.value);
    });
    return form;
  }
}

function copyButton(text) {
  const button = iconButton("copy", "Copy", async () => {
    const done = await copy(text());
    button.classList.toggle("done", done);
    setTimeout(() => button.classList.remove("done"), 1200);
  });
  return button;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function duration(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 1) return `${Math.round(milliseconds)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return seconds < 100 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function figures({ usage, speed, first, finish, stopped }) {
  const parts = [];
  if (usage?.completion) parts.push(`${usage.completion} token${usage.completion === 1 ? "" : "s"}`);
  if (speed && usage?.completion > 1) parts.push(`${speed < 100 ? speed.toFixed(1) : Math.round(speed)} tok/s`);
  if (first) parts.push(`first after ${duration(first)}`);
  if (stopped) parts.push("stopped");
  else if (finish === "length") parts.push("cut at the limit");
  return parts.join(" · ");
}

function details({ usage, model }) {
  const read = usage ? `prompt of ${usage.prompt} tokens, ${usage.cached} of them read before` : "";
  return [model, read].filter(Boolean).join("\n");
}
