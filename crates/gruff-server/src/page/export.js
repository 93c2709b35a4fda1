// Conversations out of the browser, and back.

import { download, newId } from "./dom.js";
import { withFiles } from "./files.js";
import { isConversation } from "./store.js";

function fileName(title) {
  return (title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
}

export function exportJson(conversations, title) {
  const text = JSON.stringify({ gruff: 1, conversations }, null, 2);
  download(`${fileName(title)}.json`, "application/json", text);
}

export function exportMarkdown(conversation) {
  download(`${fileName(conversation.title)}.md`, "text/markdown", markdown(conversation));
}

function markdown({ title, messages }) {
  const parts = [`# ${title || "Conversation"}`];
  for (const message of messages) {
    parts.push(`## ${{ user: "You", assistant: message.model || "Model", tool: "Result of a tool" }[message.role]}`);
    if (message.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${message.reasoning.trim()}\n\n</details>`);
    parts.push(message.role === "user" ? withFiles(message) : message.text);
    for (const call of message.calls ?? []) parts.push(`\`\`\`json\n${call.name} ${call.arguments}\n\`\`\``);
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

/** The conversations in a file's text; throws what is wrong with it. Ids are new, so that nothing is overwritten. */
export function importJson(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  const list = found?.conversations;
  if (!Array.isArray(list)) throw new Error("This file has no conversations of this page.");
  const good = list.filter(isConversation);
  if (good.length < list.length) throw new Error(`${list.length - good.length} of ${list.length} conversations in this file are damaged.`);
  return good.map((conversation) => ({ ...conversation, id: newId() }));
}
