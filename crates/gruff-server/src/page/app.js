// The page: what is open, what is being answered, and who hears of it.

import { answer, requestBody } from "./answer.js";
import { models } from "./api.js";
import { Composer } from "./composer.js";
import { byId, el } from "./dom.js";
import { exportJson, exportMarkdown, importJson } from "./export.js";
import { MessageView } from "./message.js";
import { ask, connectSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Conversations, loadSettings, newConversation } from "./store.js";

/** While an answer grows it is saved so often, in milliseconds. */
const SAVE_EVERY = 1000;
/** An answer that another tab has not saved for so long has been left. */
const LEFT_AFTER = 4 * SAVE_EVERY;

const settings = loadSettings();
const store = new Conversations();
const sidebar = new Sidebar();
const composer = new Composer({ send, stop, editLast, fault: (text) => notice(text) });
const { open: openSettings, set } = connectSettings(settings, settingChanged);
const scroll = byId("scroll");

let conversation = newConversation();
let views = [];
let known = [];
/** By id of the conversation: what ends its answer. */
const running = new Map();

// What is shown

function show(found) {
  conversation = found;
  byId("messages").replaceChildren();
  views = [];
  for (const message of conversation.messages) addView(message);
  recheck();
  head();
  notice("");
  toEnd();
}

function addView(message) {
  const view = new MessageView(message, { edit, regenerate, result, answered: (call) => answered(message, call) });
  views.push(view);
  byId("messages").append(view.root);
  return view;
}

function head() {
  const name = conversation.title || "New conversation";
  byId("title").textContent = name;
  document.title = conversation.title ? `${conversation.title} – gruff` : "gruff";
  byId("welcome").hidden = conversation.messages.length > 0;
  byId("menu-button").disabled = conversation.messages.length === 0;
  composer.setRunning(running.has(conversation.id));
  context();
}

/** How much of the model's context the last answer filled. */
function context() {
  const size = known.find((model) => model.id === byId("model").value)?.meta?.n_ctx;
  const usage = conversation.messages.findLast((message) => message.usage)?.usage;
  const place = byId("context");
  place.hidden = !size || !usage;
  if (place.hidden) return;
  const used = usage.prompt + usage.completion;
  const short = (n) => (n < 1000 ? String(n) : `${(n / 1000).toFixed(n < 9950 ? 1 : 0)}k`);
  byId("context-text").textContent = `${short(used)} of ${short(size)} tokens`;
  place.title = `${used} of ${size} tokens of context in use`;
  const meter = byId("context-meter");
  Object.assign(meter, { max: size, high: 0.85 * size, optimum: 0, value: Math.min(used, size) });
  meter.setAttribute("aria-valuetext", place.title);
}

async function list() {
  sidebar.set(await store.all(), conversation.id, running);
}

function notice(text, action, act) {
  const place = byId("notice");
  place.replaceChildren(text, ...(action ? [el("button", { type: "button", onclick: act }, action)] : []));
  place.hidden = !text;
}

function announce(text) {
  byId("status").textContent = text;
}

const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
let follow = true;

function toEnd() {
  follow = true;
  scroll.scrollTop = scroll.scrollHeight;
}

scroll.addEventListener("scroll", () => {
  follow = atEnd();
  byId("to-end").hidden = follow;
}, { passive: true });
byId("to-end").addEventListener("click", toEnd);
new ResizeObserver(() => follow && toEnd()).observe(byId("messages"));

// Conversations

async function openFromAddress() {
  const id = location.hash.slice(1);
  if (id === conversation.id) return;
  const live = running.get(id)?.conversation;
  const found = id ? (live ?? (await store.get(id))) : null;
  show(found ?? newConversation());
  if (id && !found) history.replaceState(null, "", location.pathname + location.search);
  await list();
  composer.focus();
}

function begin() {
  sidebar.close();
  if (location.hash) location.hash = "";
  else if (conversation.messages.length) openFromAddress();
  composer.focus();
}

async function save(saved = conversation) {
  saved.updated = Date.now();
  try {
    await store.put(saved);
  } catch {
    notice("The browser has no room for this conversation; export it, or delete others.");
  }
  await list();
}

/** An answer that was not finished when its page was left. */
function recheck() {
  const last = conversation.messages.at(-1);
  if (!last?.running || running.has(conversation.id)) return;
  const left = LEFT_AFTER - (Date.now() - conversation.updated);
  if (left > 0) {
    setTimeout(recheck, left + 50);
    return;
  }
  Object.assign(last, { running: false, error: "The page was left before this answer was whole." });
  views.at(-1)?.update();
}

store.onChange(async (id) => {
  await list();
  if (id !== null && id !== conversation.id && !running.has(id)) return;
  const mine = running.get(id ?? conversation.id);
  const found = await store.get(id ?? conversation.id);
  if (!found) {
    if (mine) mine.gone = true;
    mine?.controller.abort();
    if (id === null || id === conversation.id) {
      show(newConversation());
      history.replaceState(null, "", location.pathname + location.search);
      await list();
    }
    return;
  }
  if (mine || found.id !== conversation.id) return;
  const grown = found.messages.length === conversation.messages.length && found.messages.at(-1)?.role === "assistant";
  const same = grown && found.messages.slice(0, -1).every((message, i) => message.text === conversation.messages[i].text);
  if (!same) return show(found);
  conversation = found;
  views.forEach((view, i) => (view.message = found.messages[i]));
  views.at(-1).update();
  recheck();
  head();
  return undefined;
});

// Asking

async function send(text, files) {
  const last = conversation.messages.at(-1);
  // An answer of which nothing came is of no use to anybody.
  if (last?.role === "assistant" && last.error && !last.text && !last.reasoning && !last.calls?.length) {
    conversation.messages.pop();
    views.pop().root.remove();
  }
  const message = { role: "user", text, ...(files.length ? { files } : {}) };
  conversation.messages.push(message);
  if (!conversation.title) conversation.title = titleOf(message);
  addView(message);
  if (location.hash.slice(1) !== conversation.id) history.replaceState(null, "", `#${conversation.id}`);
  await reply();
}

function titleOf({ text, files = [] }) {
  const line = text.split("\n").map((line) => line.trim()).find(Boolean) ?? files[0]?.name ?? "Untitled";
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/** Has the model answer what there is. */
async function reply() {
  const mine = conversation;
  const model = byId("model").value;
  let body;
  try {
    body = requestBody(mine.messages, settings, model);
  } catch (error) {
    notice(`Tools: ${error.message}`, "Settings", openSettings);
    return;
  }
  const message = { role: "assistant", text: "", model, running: true };
  mine.messages.push(message);
  const view = addView(message);
  const run = { controller: new AbortController(), conversation: mine, gone: false };
  running.set(mine.id, run);
  notice("");
  head();
  toEnd();
  announce("The model is answering.");
  await save(mine);
  let saved = Date.now();
  const changed = () => {
    view.update();
    if (Date.now() - saved < SAVE_EVERY || run.gone) return;
    saved = Date.now();
    save(mine);
  };
  await answer(message, body, settings.key, run.controller.signal, changed);
  message.running = false;
  if (message.calls) message.calls = message.calls.filter(Boolean);
  running.delete(mine.id);
  view.update();
  if (!run.gone) await save(mine);
  if (mine === conversation) head();
  announce(message.error ?? `The answer is complete. ${message.text.slice(0, 1500)}`);
  if (message.status === 401) wantKey();
  // A model that was loaded for this answer has told its context only now.
  else if (!message.error && !known.find(({ id }) => id === model)?.meta?.n_ctx) await loadModels();
}

function stop() {
  running.get(conversation.id)?.controller.abort();
}

/** Drops everything from a message on. */
function cutAt(view) {
  const at = views.indexOf(view);
  if (at === -1) return false;
  stop();
  conversation.messages.splice(at);
  for (const gone of views.splice(at)) gone.root.remove();
  return true;
}

async function regenerate(view) {
  if (running.has(conversation.id) || !cutAt(view)) return;
  await reply();
}

function edit(view) {
  if (running.has(conversation.id)) return;
  const bubble = view.root.querySelector(".bubble");
  if (!bubble || view.root.querySelector("form")) return;
  const area = el("textarea", { value: view.message.text, rows: Math.min(12, view.message.text.split("\n").length + 1), "aria-label": "Edit the message" });
  const form = el("form", { className: "edit" }, area, el("div", { className: "buttons end" }, el("button", { type: "button", className: "plain", onclick: () => done() }, "Cancel"), el("button", { className: "primary" }, "Send")));
  const done = () => {
    form.replaceWith(bubble);
    composer.focus();
  };
  const submit = async () => {
    const text = area.value.trim();
    const files = view.message.files ?? [];
    if ((!text && !files.length) || running.has(conversation.id) || !cutAt(view)) return;
    if (!conversation.named && conversation.messages.length === 0) conversation.title = "";
    await send(text, files);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  area.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      done();
    }
  });
  bubble.replaceWith(form);
  area.focus();
}

function editLast() {
  const view = views.findLast(({ message }) => message.role === "user");
  if (view) edit(view);
}

// Tools

/** The results that stand behind an answer, before the next one. */
function resultsOf(message) {
  const at = conversation.messages.indexOf(message);
  const rest = at === -1 ? [] : conversation.messages.slice(at + 1);
  const end = rest.findIndex(({ role }) => role !== "tool");
  return end === -1 ? rest : rest.slice(0, end);
}

function answered(message, call) {
  const isLast = conversation.messages.findLast(({ role }) => role !== "tool") === message;
  return !isLast || resultsOf(message).some((result) => result.call === call.id);
}

async function result(call, text) {
  const asked = conversation.messages.findLast(({ role }) => role === "assistant");
  if (!asked?.calls?.includes(call) || answered(asked, call)) return;
  const message = { role: "tool", call: call.id, text };
  conversation.messages.push(message);
  addView(message);
  views.find((view) => view.message === asked)?.update();
  if (asked.calls.every((call) => answered(asked, call))) await reply();
  else await save();
}

// The server

async function loadModels() {
  try {
    known = await models(settings.key);
  } catch (error) {
    if (error.status === 401) wantKey();
    else notice(error.message, "Try again", () => loadModels());
    return;
  }
  notice("");
  const select = byId("model");
  select.replaceChildren(...known.map(({ id }) => el("option", { value: id, textContent: id.split("/").at(-1), title: id })));
  const wanted = known.some(({ id }) => id === settings.model) ? settings.model : known[0]?.id;
  if (wanted) select.value = wanted;
  select.hidden = known.length === 0;
  select.title = wanted ?? "";
  context();
}

async function wantKey() {
  const refused = settings.key !== "";
  notice("This server wants an API key.", "Enter the key", wantKey);
  const key = await ask({
    title: "This server wants a key",
    text: refused ? "The key that is set here is not one of its keys." : "Whoever runs it can tell. It stays in this browser and goes to this server alone.",
    label: "API key", ok: "Use it", input: "", secret: true,
  });
  if (!key) return;
  set("key", key);
  if (refused && key === settings.key) await loadModels();
}

byId("model").addEventListener("change", ({ target }) => {
  set("model", target.value);
  target.title = target.value;
  context();
});

function settingChanged(name) {
  if (name === "key" || name === "all") loadModels();
}

// The menu

const menu = byId("menu");

function toggleMenu(open) {
  menu.hidden = !open;
  byId("menu-button").setAttribute("aria-expanded", String(open));
  if (open) menu.firstElementChild.focus();
}

byId("menu-button").addEventListener("click", () => toggleMenu(menu.hidden));
addEventListener("click", (event) => {
  if (!menu.hidden && !menu.contains(event.target) && !byId("menu-button").contains(event.target)) toggleMenu(false);
});
menu.addEventListener("keydown", (event) => {
  const items = [...menu.children];
  const step = { ArrowDown: 1, ArrowUp: items.length - 1 }[event.key];
  if (step) {
    event.preventDefault();
    items[(items.indexOf(document.activeElement) + step) % items.length].focus();
  } else if (event.key === "Escape" || event.key === "Tab") {
    event.stopPropagation();
    toggleMenu(false);
    byId("menu-button").focus();
  }
});
menu.addEventListener("click", async ({ target }) => {
  const chosen = target.dataset.do;
  toggleMenu(false);
  if (chosen === "markdown") exportMarkdown(conversation);
  if (chosen === "json") exportJson([conversation], conversation.title);
  if (chosen === "rename") {
    const title = await ask({ title: "Rename", ok: "Rename", input: conversation.title, label: "Name" });
    if (!title) return;
    Object.assign(conversation, { title: title.slice(0, 200), named: true });
    head();
    await save();
  }
  if (chosen === "delete") {
    const sure = await ask({ title: "Delete this conversation?", text: `“${conversation.title}” is kept nowhere else.`, ok: "Delete", danger: true });
    if (!sure) return;
    const { id } = conversation;
    const run = running.get(id);
    if (run) run.gone = true;
    stop();
    await store.delete(id);
    begin();
    await list();
  }
});

byId("export-all").addEventListener("click", async () => exportJson(await store.all(), "gruff-conversations"));
byId("import").addEventListener("click", () => byId("import-input").click());
byId("import-input").addEventListener("change", async ({ target }) => {
  const file = target.files[0];
  byId("settings").close();
  try {
    const found = importJson(await file.text());
    for (const imported of found) await store.put(imported);
    announce(`${found.length} conversations were imported.`);
  } catch (error) {
    notice(error.message);
  }
  target.value = "";
  await list();
});
byId("delete-all").addEventListener("click", async () => {
  byId("settings").close();
  if (!(await ask({ title: "Delete all conversations?", text: "They are kept nowhere else.", ok: "Delete all", danger: true }))) return;
  for (const run of running.values()) {
    run.gone = true;
    run.controller.abort();
  }
  await store.clear();
  show(newConversation());
  history.replaceState(null, "", location.pathname + location.search);
  await list();
});

// The keyboard

addEventListener("keydown", (event) => {
  const modal = document.querySelector("dialog[open]");
  const control = event.ctrlKey || event.metaKey;
  const writes = event.target.matches?.("input, textarea, select");
  if (modal) return;
  if (control && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    sidebar.find();
  } else if (control && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    begin();
  } else if (control && event.key === ",") {
    event.preventDefault();
    openSettings();
  } else if (event.key === "Escape") {
    if (!sidebar.close()) stop();
  } else if (event.key === "/" && !writes && !control) {
    event.preventDefault();
    composer.box.focus();
  }
});

byId("new").addEventListener("click", begin);
addEventListener("hashchange", openFromAddress);

const kept = await store.open();
if (!kept) notice("This browser keeps nothing here: conversations last as long as this page.");
const id = location.hash.slice(1);
const found = id ? await store.get(id) : null;
if (found) show(found);
else {
  if (id) history.replaceState(null, "", location.pathname + location.search);
  head();
}
await list();
composer.focus();
await loadModels();
