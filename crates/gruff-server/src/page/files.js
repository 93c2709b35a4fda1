// Attachments: text files that become part of a message.

/** Bytes of a file at most; a context of a million tokens holds about as much. */
const LARGEST = 4 << 20;

/** Reads files as UTF-8 text. Gives what can be read, and what is wrong with the rest. */
export async function readFiles(list) {
  const [files, faults] = [[], []];
  for (const file of list) {
    if (file.size > LARGEST) {
      faults.push(`${file.name} is larger than 4 MB.`);
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error("binary");
      files.push({ name: file.name.slice(0, 200), text });
    } catch {
      faults.push(`${file.name} is no text in UTF-8; only text can be attached.`);
    }
  }
  return { files, faults };
}

/** What the model is given: each file in a fence that its text does not close, then the message. */
export function withFiles({ text, files = [] }) {
  const parts = files.map((file) => {
    const longest = Math.max(2, ...(file.text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File \`${file.name.replace(/[`\n]/g, "'")}\`:\n\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, text].filter(Boolean).join("\n\n");
}

export function size(text) {
  const bytes = new Blob([text]).size;
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
