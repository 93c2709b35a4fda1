// What stays in the browser: conversations in IndexedDB, settings in localStorage. Other tabs are told of changes.

import { newId } from "./dom.js";

const SETTINGS = "gruff.settings";
const DEFAULTS = {
  system: "", temperature: "", top_p: "", top_k: "", max_tokens: "",
  reasoning: "auto", theme: "auto", model: "", key: "", tools: "",
};

export function loadSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // A browser that keeps nothing still has them until the page is left.
  }
}

export function onSettings(listener) {
  addEventListener("storage", (event) => event.key === SETTINGS && listener(loadSettings()));
}

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", named: false, created: now, updated: now, messages: [] };
}

/** Conversations by id. Where the browser has no database, they last as long as the page. */
export class Conversations {
  #db = null;
  #memory = new Map();
  #channel = "BroadcastChannel" in self ? new BroadcastChannel("gruff.conversations") : null;

  async open() {
    try {
      this.#db = await new Promise((resolve, reject) => {
        const opening = indexedDB.open("gruff", 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
        opening.onsuccess = () => resolve(opening.result);
        opening.onerror = () => reject(opening.error);
        opening.onblocked = () => reject(new Error("blocked"));
      });
      this.#db.onversionchange = () => this.#db.close();
    } catch {
      this.#db = null;
    }
    return this.#db !== null;
  }

  /** Calls with the id of a conversation that another tab has changed, `null` for all of them. */
  onChange(listener) {
    this.#channel?.addEventListener("message", ({ data }) => listener(data?.id ?? null));
  }

  /** All of them, the latest first. */
  async all() {
    const found = this.#db ? await this.#run("readonly", (store) => store.getAll()) : [...this.#memory.values()];
    return found.filter(isConversation).sort((a, b) => b.updated - a.updated);
  }

  async get(id) {
    const found = this.#db ? await this.#run("readonly", (store) => store.get(id)) : this.#memory.get(id);
    return isConversation(found) ? found : null;
  }

  async put(conversation) {
    if (this.#db) await this.#run("readwrite", (store) => store.put(conversation));
    else this.#memory.set(conversation.id, structuredClone(conversation));
    this.#channel?.postMessage({ id: conversation.id });
  }

  async delete(id) {
    if (this.#db) await this.#run("readwrite", (store) => store.delete(id));
    else this.#memory.delete(id);
    this.#channel?.postMessage({ id });
  }

  async clear() {
    if (this.#db) await this.#run("readwrite", (store) => store.clear());
    else this.#memory.clear();
    this.#channel?.postMessage({ id: null });
  }

  #run(mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.#db.transaction("conversations", mode);
      const asked = work(transaction.objectStore("conversations"));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
    });
  }
}

/** Whether a value has a conversation's form; files that are imported may hold anything. */
export function isConversation(value) {
  const text = (value) => value === undefined || typeof value === "string";
  return (
    typeof value?.id === "string" &&
    typeof value.title === "string" &&
    Number.isFinite(value.created) &&
    Number.isFinite(value.updated) &&
    Array.isArray(value.messages) &&
    value.messages.every(
      (message) =>
        ["user", "assistant", "tool"].includes(message?.role) &&
        typeof message.text === "string" &&
        text(message.reasoning) &&
        text(message.error) &&
        text(message.call) &&
        (message.files === undefined ||
          (Array.isArray(message.files) && message.files.every((f) => typeof f?.name === "string" && typeof f.text === "string"))) &&
        (message.calls === undefined ||
          (Array.isArray(message.calls) &&
            message.calls.every((c) => [c?.id, c?.name, c?.arguments].every((part) => typeof part === "string")))),
    )
  );
}
