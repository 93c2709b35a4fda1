// The settings' dialog, and the small one that asks for a name, a key or a yes.

import { parseTools } from "./answer.js";
import { byId } from "./dom.js";
import { onSettings, saveSettings } from "./store.js";

const FIELDS = ["system", "temperature", "top_p", "top_k", "max_tokens", "theme", "key", "tools"];

/** Keeps `settings` and the dialog the same; `changed` hears of every change, also in other tabs. */
export function connectSettings(settings, changed) {
  const dialog = byId("settings");
  const show = () => {
    for (const name of FIELDS) byId(`set-${name}`).value = settings[name];
    byId("reasoning").value = settings.reasoning;
    document.documentElement.dataset.theme = settings.theme;
    checkTools(settings.tools);
  };
  const set = (name, value) => {
    if (settings[name] === value) return;
    settings[name] = value;
    saveSettings(settings);
    document.documentElement.dataset.theme = settings.theme;
    changed(name);
  };
  for (const name of FIELDS) {
    byId(`set-${name}`).addEventListener("change", ({ target }) => {
      if (!target.checkValidity()) return target.reportValidity();
      if (name === "tools" && !checkTools(target.value)) return undefined;
      return set(name, target.value.trim());
    });
  }
  byId("reasoning").addEventListener("change", ({ target }) => set("reasoning", target.value));
  byId("open-settings").addEventListener("click", () => open());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  // Enter in a field takes it over, and does not close what one is still writing in.
  byId("settings-form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("input")) {
      event.preventDefault();
      event.target.blur();
    }
  });
  onSettings((found) => {
    Object.assign(settings, found);
    show();
    changed("all");
  });
  const open = () => {
    show();
    dialog.showModal();
  };
  show();
  return { open, set };
}

function checkTools(text) {
  const fault = byId("tools-fault");
  try {
    parseTools(text);
    fault.hidden = true;
  } catch (error) {
    fault.textContent = error.message;
    fault.hidden = false;
  }
  return fault.hidden;
}

/**
 * Asks for a text (`input`: its first value) or for a yes. Gives the text, true, or null for no.
 */
export function ask({ title, text = "", ok, danger = false, input, label = "", secret = false }) {
  const [dialog, field] = [byId("ask"), byId("ask-input")];
  if (dialog.open) return Promise.resolve(null);
  byId("ask-title").textContent = title;
  byId("ask-text").textContent = text;
  byId("ask-label").textContent = label || title;
  byId("ask-ok").textContent = ok;
  byId("ask-ok").classList.toggle("danger", danger);
  field.hidden = input === undefined;
  field.type = secret ? "password" : "text";
  field.value = input ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  if (input === undefined) byId("ask-ok").focus();
  else field.select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const yes = dialog.returnValue === "ok";
      resolve(yes ? (input === undefined ? true : field.value.trim()) : null);
      field.value = "";
    }, { once: true });
  });
}

// Enter in the small dialog's field means yes; of a form's buttons a browser would take the first.
byId("ask-input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  byId("ask").close("ok");
});
