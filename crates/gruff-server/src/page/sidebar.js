// The list of conversations.

import { byId, el } from "./dom.js";

const WIDE = matchMedia("(min-width: 48.01rem)");

export class Sidebar {
  #conversations = [];

  constructor() {
    this.list = byId("conversations");
    this.search = byId("search");
    this.search.addEventListener("input", () => this.show());
    this.search.addEventListener("keydown", (event) => {
      const first = this.list.querySelector("a");
      if (event.key === "Enter" && first && this.search.value) {
        this.search.value = "";
        first.click();
        this.show();
      } else if (event.key === "ArrowDown" && first) {
        event.preventDefault();
        first.focus();
      } else if (event.key === "Escape" && this.search.value) {
        event.stopPropagation();
        this.search.value = "";
        this.show();
      }
    });
    this.list.addEventListener("keydown", (event) => this.#move(event));
    this.list.addEventListener("click", () => this.close());
    byId("open-sidebar").addEventListener("click", () => this.toggle());
    byId("close-sidebar").addEventListener("click", () => this.close());
    byId("shade").addEventListener("click", () => this.close());
  }

  /** Opens it over the page on a phone; elsewhere folds it away or back. */
  toggle() {
    document.body.classList.toggle(WIDE.matches ? "closed" : "open");
    if (document.body.classList.contains("open")) byId("close-sidebar").focus();
  }

  /** On a phone, gives the page back. */
  close() {
    if (!document.body.classList.contains("open")) return false;
    document.body.classList.remove("open");
    byId("open-sidebar").focus();
    return true;
  }

  find() {
    if (WIDE.matches) document.body.classList.remove("closed");
    else document.body.classList.add("open");
    this.search.focus();
    this.search.select();
  }

  set(conversations, current, answering) {
    this.#conversations = conversations;
    this.current = current;
    this.answering = answering;
    this.show();
  }

  show() {
    const wanted = this.search.value.trim().toLowerCase();
    const shown = wanted ? this.#conversations.filter((c) => says(c, wanted)) : this.#conversations;
    const nodes = [];
    let group = "";
    for (const conversation of shown) {
      const day = age(conversation.updated);
      if (day !== group) nodes.push(el("li", {}, el("h2", {}, day)));
      group = day;
      const link = el("a", { href: `#${conversation.id}`, className: this.answering.has(conversation.id) ? "answering" : "" }, conversation.title || "Untitled");
      if (conversation.id === this.current) link.setAttribute("aria-current", "page");
      nodes.push(el("li", {}, link));
    }
    this.list.replaceChildren(...nodes);
    const none = byId("no-conversations");
    none.hidden = shown.length > 0;
    none.textContent = wanted ? "Nothing says that." : "No conversations yet.";
  }

  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const links = [...this.list.querySelectorAll("a")];
    const next = links.indexOf(document.activeElement) + step;
    (next < 0 ? this.search : (links[next] ?? links.at(-1))).focus();
  }
}

function says(conversation, wanted) {
  return (
    conversation.title.toLowerCase().includes(wanted) ||
    conversation.messages.some((message) => message.text.toLowerCase().includes(wanted))
  );
}

function age(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - 86_400_000) return "Yesterday";
  return time >= midnight - 7 * 86_400_000 ? "This week" : new Date(time).toLocaleDateString(undefined, { year: "numeric", month: "long" });
}
