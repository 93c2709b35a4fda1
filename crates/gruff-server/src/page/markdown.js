// Markdown as models write it, made into elements. What a model says is untrusted: it becomes text nodes in elements
// of a fixed list, links have one of three schemes, pictures are links, and HTML is shown as it is written. Time is
// linear in the text's length but for a small factor, and nesting is bounded.

import { copy, el } from "./dom.js";

/** Quotes and lists deeper than this are shown as text. */
const DEEPEST = 12;
/** A line with more bars than this heads no table, and a table has no more cells; what is beyond is shown as it is
 * written. Each row has as many cells as the head, so that a short text could otherwise ask for millions. */
const MOST_COLUMNS = 200;
const MOST_CELLS = 10_000;
/** How far a mark of emphasis looks for its end; an unclosed one costs no more than that. */
const REACH = 1500;

// No two parts of these that may take the same character stand next to each other: what fails does so in linear time.
const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|[ \t]*)$/;
const DELIMITER = /^:?-+:?$/;

/**
 * Shows a text that grows. Blocks that are over are left alone; only the last one is made again.
 */
export class Markdown {
  constructor(root) {
    this.root = root;
    this.text = "";
    /** Where each block of the text begins, with the elements made of it. */
    this.blocks = [];
  }

  set(text) {
    if (text === this.text) return;
    // The last block may go on, and the one before it may take it in (a list behind a blank line).
    const kept = text.startsWith(this.text) ? Math.max(0, this.blocks.length - 2) : 0;
    const from = this.blocks[kept]?.start ?? 0;
    for (const block of this.blocks.splice(kept)) block.node.remove();
    this.text = text;
    const lines = text.slice(from).split("\n");
    let [start, line] = [from, 0];
    for (const { node, count } of blocks(lines, 0)) {
      if (node) {
        this.root.append(node);
        this.blocks.push({ start, node });
      }
      for (const end = line + count; line < end; line += 1) start += lines[line].length + 1;
    }
  }
}

/** All of a text at once. */
export function render(text, depth = 0) {
  return [...blocks(text.split("\n"), depth)].map(({ node }) => node).filter(Boolean);
}

/** The blocks that lines make: each an element, or none for blank lines, and how many lines it took. */
function* blocks(lines, depth) {
  let at = 0;
  while (at < lines.length) {
    const { node, count } = block(lines, at, depth);
    yield { node, count };
    at += count;
  }
}

function block(lines, at, depth) {
  const line = lines[at];
  if (line.trim() === "") return { node: null, count: 1 };
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    // The page has headings of its own above these.
    return { node: el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(headingText(heading[2]))), count: 1 };
  }
  if (RULE.test(line)) return { node: el("hr"), count: 1 };
  if (depth < DEEPEST) {
    if (QUOTE.test(line)) return quote(lines, at, depth);
    if (ITEM.test(line)) return list(lines, at, depth);
  }
  if (line.includes("|") && isTable(line, lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at, depth);
}

function headingText(rest) {
  const text = rest.trim();
  const bare = text.slice(0, text.length - (/#*$/.exec(text.slice(-100))?.[0].length ?? 0));
  return bare === "" || /[ \t]$/.test(bare) ? bare.trimEnd() : text;
}

function isTable(head, delimiters) {
  if (!delimiters.includes("-") || !delimiters.includes("|")) return false;
  const found = cells(delimiters);
  if (found.length > MOST_COLUMNS) return false;
  return found.every((cell) => DELIMITER.test(cell)) && found.length === cells(head).length;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return { node: el("p", {}, ...inline(text)), count: end - at };
}

function interrupts(lines, at, depth) {
  const line = lines[at];
  if (line.trim() === "" || FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  return depth < DEEPEST && (QUOTE.test(line) || /^ {0,3}(?:[-*+]|1[.)])[ \t]+\S/.test(line));
}

function fenced(lines, at, [, indent, marks, info]) {
  const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const strip = new RegExp(`^ {0,${indent.length}}`);
  const code = lines.slice(at + 1, end).map((line) => line.replace(strip, "")).join("\n");
  const language = info.trim().split(/\s+/)[0].slice(0, 40);
  return { node: codeBlock(code, language), count: Math.min(end + 1, lines.length) - at };
}

/** Code with its language and a button that copies it. */
export function codeBlock(code, language) {
  const button = el("button", { type: "button", className: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(code)) ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const head = el("figcaption", {}, el("span", {}, language || "text"), button);
  return el("figure", { className: "code-block" }, head, el("pre", { tabIndex: 0 }, el("code", {}, code)));
}

function quote(lines, at, depth) {
  let end = at;
  const inner = [];
  while (end < lines.length && (QUOTE.test(lines[end]) || (end > at && !interrupts(lines, end, depth)))) {
    inner.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  return { node: el("blockquote", {}, ...[...blocks(inner, depth + 1)].map((b) => b.node).filter(Boolean)), count: end - at };
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const kind = ordered ? first[2].at(-1) : first[2];
  const items = [];
  let [end, loose] = [at, false];
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || (ordered ? item[2].at(-1) : item[2]) !== kind || RULE.test(lines[end])) break;
    // Where what belongs to the item is set in.
    const spaces = item[3] === undefined || item[3].length > 4 ? 1 : item[3].length;
    const width = item[1].length + item[2].length + spaces;
    const inner = [lines[end].slice(Math.min(width, lines[end].length))];
    end += 1;
    while (end < lines.length) {
      const line = lines[end];
      const indent = line.length - line.trimStart().length;
      if (line.trim() === "") {
        // A blank line goes on with the item if something set in follows, with the list if an item does.
        let next = end + 1;
        while (next < lines.length && lines[next].trim() === "") next += 1;
        if (next >= lines.length || lines[next].length - lines[next].trimStart().length < width) break;
        loose = true;
        inner.push(...lines.slice(end, next).map(() => ""));
        end = next;
      } else if (indent >= Math.min(width, 4) && indent >= item[1].length + 2) {
        inner.push(line.slice(Math.min(indent, width)));
        end += 1;
      } else if (!interrupts(lines, end, depth) && !ITEM.test(line) && inner.at(-1).trim() !== "") {
        inner.push(line.trimStart());
        end += 1;
      } else {
        break;
      }
    }
    items.push(inner);
    let next = end;
    while (next < lines.length && lines[next].trim() === "") next += 1;
    if (next > end && next < lines.length && ITEM.test(lines[next])) {
      loose = true;
      end = next;
    }
  }
  const nodes = items.map((inner) => listItem(inner, loose, depth));
  const start = ordered ? Number.parseInt(first[2], 10) : 1;
  return { node: el(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...nodes), count: end - at };
}

function listItem(lines, loose, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
  if (task) lines[0] = lines[0].slice(task[0].length);
  const nodes = [...blocks(lines, depth + 1)].map((b) => b.node).filter(Boolean);
  // A tight list has no paragraphs in its items.
  const children = loose ? nodes : nodes.flatMap((node) => (node.tagName === "P" ? [...node.childNodes] : [node]));
  if (task) children.unshift(el("input", { type: "checkbox", disabled: true, checked: task[1] !== " " }));
  return el("li", task ? { className: "task" } : {}, ...children);
}

function table(lines, at) {
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : undefined;
  });
  const row = (tag, values) =>
    el("tr", {}, ...head.map((_, i) => el(tag, { className: sides[i] }, ...inline(values[i] ?? ""))));
  let end = at + 2;
  const rows = [];
  const most = Math.floor(MOST_CELLS / head.length);
  while (end < lines.length && rows.length < most && lines[end].includes("|")) {
    rows.push(row("td", cells(lines[end])));
    end += 1;
  }
  const node = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, ...rows));
  return { node: el("div", { className: "table", tabIndex: 0 }, node), count: end - at };
}

/** What stands between the bars of a line; bars in code or behind a backslash are no borders. */
function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  const found = [""];
  let code = false;
  for (let i = 0; i < inner.length; i += 1) {
    const char = inner[i];
    if (char === "\\" && inner[i + 1] === "|") {
      found[found.length - 1] += "|";
      i += 1;
    } else if (char === "|" && !code) {
      found.push("");
    } else {
      if (char === "`") code = !code;
      found[found.length - 1] += char;
    }
  }
  return found.map((cell) => cell.trim());
}

const SPECIAL = /[\\`*_~[!<\n]|https?:\/\//g;

/** Text with its emphasis, code and links, as nodes. */
function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(plain);
    plain = "";
  };
  const put = (node) => {
    flush();
    nodes.push(node);
  };
  let at = 0;
  // Where runs of a mark were found to have no end: looking once is enough.
  const hopeless = new Set();
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) {
      plain += text.slice(at);
      break;
    }
    plain += text.slice(at, next.index);
    at = next.index;
    const found = special(text, at, depth, hopeless);
    if (found.node === undefined) plain += found.text;
    else put(found.node);
    at = found.end;
  }
  flush();
  return nodes;
}

function special(text, at, depth, hopeless) {
  const char = text[at];
  const asText = (end = at + 1) => ({ text: text.slice(at, end), end });
  switch (char) {
    case "\\": {
      const next = text[at + 1];
      if (next === "\n") return { node: el("br"), end: at + 2 };
      return next !== undefined && /[!-/:-@[-`{-~]/.test(next) ? { text: next, end: at + 2 } : asText();
    }
    case "\n": {
      const hard = text.slice(Math.max(0, at - 2), at) === "  ";
      return hard ? { node: el("br"), end: at + 1 } : { text: "\n", end: at + 1 };
    }
    case "`":
      return code(text, at, hopeless) ?? asText(runEnd(text, at));
    case "!":
      return text[at + 1] === "[" ? (link(text, at + 1, depth, hopeless) ?? asText()) : asText();
    case "[":
      return link(text, at, depth, hopeless) ?? asText();
    case "<":
      return autolink(text, at) ?? asText();
    case "h":
      return bare(text, at);
    default:
      return emphasis(text, at, depth, hopeless) ?? asText(runEnd(text, at));
  }
}

function runEnd(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end;
}

function code(text, at, hopeless) {
  const end = runEnd(text, at);
  const marks = text.slice(at, end);
  if (hopeless.has(marks)) return null;
  for (let close = text.indexOf(marks, end); close !== -1; ) {
    const closeEnd = runEnd(text, close);
    if (closeEnd - close === marks.length) {
      let inner = text.slice(end, close).replaceAll("\n", " ");
      if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
      return { node: el("code", {}, inner), end: closeEnd };
    }
    close = text.indexOf(marks, closeEnd);
  }
  hopeless.add(marks);
  return null;
}

function emphasis(text, at, depth, hopeless) {
  const mark = text[at];
  const end = runEnd(text, at);
  const size = Math.min(end - at, mark === "~" ? 2 : 3);
  const inWord = /[\p{L}\p{N}]/u;
  if (depth >= DEEPEST || end - at > 3 || (mark === "~" && size !== 2)) return null;
  if (/\s/.test(text[end] ?? " ") || (mark === "_" && inWord.test(text[at - 1] ?? " "))) return null;
  const marks = mark.repeat(size);
  if (hopeless.has(marks)) return null;
  const limit = Math.min(text.length, end + REACH);
  for (let close = text.indexOf(marks, end); close !== -1 && close < limit; ) {
    const closeEnd = runEnd(text, close);
    const fits = !/[\s\\]/.test(text[close - 1]) && (mark !== "_" || !inWord.test(text[closeEnd] ?? " "));
    // `**bold *and italic***`: the outer mark takes the last of a longer run.
    const room = closeEnd - close;
    if (fits && (room === size || (room > size && size < 3))) {
      const from = room === size ? close : closeEnd - size;
      const inner = inline(text.slice(end, from), depth + 1);
      if (mark === "~") return { node: el("del", {}, ...inner), end: from + size };
      if (size === 1) return { node: el("em", {}, ...inner), end: from + size };
      const strong = el("strong", {}, ...inner);
      return { node: size === 3 ? el("em", {}, strong) : strong, end: from + size };
    }
    close = text.indexOf(marks, closeEnd);
  }
  if (text.indexOf(marks, end) === -1) hopeless.add(marks);
  return null;
}

function link(text, at, depth, hopeless) {
  if (hopeless.has("](")) return null;
  if (text.indexOf("](", at) === -1) {
    hopeless.add("](");
    return null;
  }
  const found = /^\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,1000})\]\([ \t]*(?:<([^<>\n]{0,2000})>|([^\s()]{0,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500})?))(?:[ \t]+"[^"\n]{0,500}")?[ \t]*\)/s
    .exec(text.slice(at, at + REACH));
  if (!found || depth >= DEEPEST) return null;
  const target = found[2] ?? found[3];
  const inner = inline(found[1], depth + 2);
  return { node: anchor(target, inner.length ? inner : [target]) ?? el("span", {}, ...inner), end: at + found[0].length };
}

function autolink(text, at) {
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(at, at + 2020));
  const node = found && anchor(found[1], [found[1]]);
  return node ? { node, end: at + found[0].length } : null;
}

function bare(text, at) {
  let found = /^https?:\/\/[^\s<>"'`|\\]{1,2000}/.exec(text.slice(at, at + 2020))?.[0];
  if (!found) return { text: text.slice(at, at + 8), end: at + 8 };
  found = found.replace(/[.,;:!?*_~]+$/, "");
  if (found.endsWith(")") && !found.includes("(")) found = found.slice(0, -1);
  const node = anchor(found, [found]);
  return node ? { node, end: at + found.length } : { text: found, end: at + found.length };
}

/** A link; none where it leads to anything but a page or an address. */
function anchor(target, children) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return el("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank", title: url.href }, ...children);
}
