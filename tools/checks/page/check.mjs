// Second tier: the chat page in headless Chromium, against `gruff serve` with the bundled model, and against a model
// that says what a page should be able to take (scripted.mjs).
//
//   npm ci && node check.mjs [--shots FOLDER]
//
// Runs target/release/gruff (GRUFF names another) and /usr/bin/chromium (CHROMIUM) on the loopback interface.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { scripted } from "./scripted.mjs";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const GRUFF = process.env.GRUFF ?? path.join(ROOT, "target/release/gruff");
const KEY = "a key for this check";
const SHOTS = process.argv[2] === "--shots" ? process.argv[3] : null;
const DESKTOP = { viewport: { width: 1280, height: 800 } };
const PHONE = { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 };

async function serve(...flags) {
  const child = spawn(GRUFF, ["serve", "--port", "0", "--threads", "2", ...flags], { stdio: ["ignore", "ignore", "pipe"] });
  const address = await new Promise((resolve, reject) => {
    let said = "";
    child.on("error", reject);
    child.on("exit", () => reject(new Error(`the server did not start: ${said}`)));
    child.stderr.on("data", (data) => {
      said += data;
      const found = /(http:\/\/\S+)\/v1/.exec(said);
      if (found) resolve(found[1]);
    });
  });
  return { address, stop: () => child.kill("SIGKILL") };
}

/** What a visit may ask for: this server alone. What it may not do: complain. */
async function visit(browser, address, { expects = /status of (401|429)|ERR_INCOMPLETE_CHUNKED/, ...options }, work) {
  const context = await browser.newContext({ ...options, acceptDownloads: true });
  const faults = [];
  context.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== address && protocol !== "blob:") faults.push(`asks ${request.url()}`);
  });
  const open = async (hash = "") => {
    const page = await context.newPage();
    page.setDefaultTimeout(20_000);
    page.on("pageerror", (error) => faults.push(`throws ${error.stack}`));
    page.on("console", (message) => {
      if (message.type() === "error" && !expects.test(message.text())) faults.push(`says ${message.text()}`);
    });
    await page.goto(`${address}/${hash}`);
    return page;
  };
  try {
    await work(open, context);
  } finally {
    await context.close();
  }
  assert.deepEqual(faults, []);
}

const ready = (page) => page.waitForSelector("#model option", { state: "attached" });
// The button goes when the stream ends; the text follows with the next frame.
const done = (page) =>
  page.waitForFunction(() => {
    const last = [...document.querySelectorAll(".assistant")].at(-1);
    return last?.getAttribute("aria-busy") === "false" && document.querySelector("#stop").hidden;
  });
const answer = (page) => page.locator(".assistant .prose:not(.reasoning-body)").last();

const said = (page, text) => page.locator(".assistant").getByText(text, { exact: true }).waitFor();

async function say(page, text) {
  await page.fill("#composer", text);
  await page.press("#composer", "Enter");
  await page.locator(".assistant").last().waitFor();
  await done(page);
}

const checks = {
  // gruff itself

  async "a question is answered, and the conversation outlives the page"(browser, { gruff }) {
    await visit(browser, gruff, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      await page.click("#open-settings");
      await page.fill("#set-temperature", "0");
      await page.fill("#set-max_tokens", "32");
      await page.press("#set-max_tokens", "Tab");
      await page.keyboard.press("Escape");
      await say(page, "What is the capital of France?");
      assert.match(await answer(page).innerText(), /Paris/);
      assert.match(await page.locator(".figures").innerText(), /^\d+ tokens · [\d.]+ tok\/s/);
      assert.match(await page.locator("#context-text").innerText(), /^\d+ of [\d.]+k? tokens$/);
      await say(page, "And of Italy?");
      assert.match(await answer(page).innerText(), /Rome/);
      await page.reload();
      await ready(page);
      assert.deepEqual(await page.locator(".user .typed").allInnerTexts(), ["What is the capital of France?", "And of Italy?"]);
      assert.match(await page.locator(".assistant .prose:not(.reasoning-body)").first().innerText(), /Paris/);
      // The same question with the same settings has the same answer again.
      await page.getByLabel("Answer again").last().click();
      await page.locator(".assistant").nth(1).waitFor();
      await done(page);
      assert.match(await answer(page).innerText(), /Rome/);
      assert.equal(await page.locator(".assistant").count(), 2);
      await page.selectOption("#reasoning", "on");
      await say(page, "What is the capital of Spain?");
      await page.locator(".reasoning").last().waitFor();
    });
  },

  async "a key is asked for, and used"(browser, { locked }) {
    await visit(browser, locked, DESKTOP, async (open) => {
      const page = await open();
      await page.waitForSelector("#ask[open]");
      await page.fill("#ask-input", "wrong");
      await page.press("#ask-input", "Enter");
      await page.getByText("is not one of its keys").waitFor();
      await page.fill("#ask-input", KEY);
      await page.click("#ask-ok");
      await ready(page);
      await say(page, "Hello");
      assert.equal(await page.locator(".fault:visible").count(), 0);
      await page.reload();
      await ready(page);
      assert.equal(await page.locator("#ask[open]").count(), 0);
    });
  },

  // The scripted model

  async "an answer streams, and Esc, the button and the other tab stop it"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      for (const how of ["Escape", "button"]) {
        await page.fill("#composer", `endless, then ${how}`);
        await page.press("#composer", "Enter");
        await page.getByText("word9 ", { exact: false }).last().waitFor();
        const early = (await answer(page).innerText()).length;
        await page.waitForTimeout(300);
        const later = (await answer(page).innerText()).length;
        assert.ok(later > early, `${early} ${later}`);
        if (how === "Escape") await page.keyboard.press("Escape");
        else await page.click("#stop");
        await done(page);
        const end = await answer(page).innerText();
        await page.waitForTimeout(200);
        assert.equal(await answer(page).innerText(), end);
        assert.match(await page.locator(".figures").last().innerText(), /stopped/);
      }
      // What was said so far is what the model is told it said.
      await say(page, "go on");
      const told = fake.requests.at(-1).messages.map(({ role }) => role);
      assert.deepEqual(told, ["user", "assistant", "user", "assistant", "user"]);
    });
  },

  async "a second tab shows what the first one does"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const first = await open();
      await ready(first);
      await say(first, "alpha");
      const second = await open(new URL(first.url()).hash);
      await said(second, "You said: alpha");
      await say(first, "beta");
      await said(second, "You said: beta");
      // While one writes, the other reads along.
      await first.fill("#composer", "endless again");
      await first.press("#composer", "Enter");
      await second.getByText("word20 ", { exact: false }).waitFor();
      // A new conversation there changes nothing here.
      await second.click("#new");
      await say(second, "gamma");
      assert.equal(await first.getByText("You said: gamma").count(), 0);
      assert.equal(await second.locator("#conversations a").count(), 2);
      await first.waitForFunction(() => document.querySelectorAll("#conversations a").length === 2);
      // An answer whose page is gone says so.
      const hash = new URL(first.url()).hash;
      await first.close();
      const third = await open(hash);
      await third.getByText("The page was left before this answer was whole.").waitFor();
      // A deleted conversation is gone everywhere.
      const fourth = await open(hash);
      await said(fourth, "You said: alpha");
      await third.click("#menu-button");
      await third.getByRole("menuitem", { name: "Delete" }).click();
      await third.click("#ask-ok");
      await fourth.waitForSelector("#welcome", { state: "visible" });
      assert.equal(await fourth.locator("#conversations a").count(), 1);
    });
  },

  async "what a model says stays text"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      await say(page, "be hostile");
      await page.waitForTimeout(300);
      const attack = page.locator(".assistant");
      const found = await attack.evaluate((root) => ({
        pwned: window.pwned ?? null,
        tags: [...new Set([...root.querySelectorAll("*")].map((node) => node.localName))].sort(),
        handlers: [...root.querySelectorAll("*")].flatMap((node) => node.getAttributeNames().filter((name) => name.startsWith("on"))),
        targets: [...root.querySelectorAll("a")].map((a) => new URL(a.href).protocol),
        forms: root.querySelectorAll("form, iframe, img, script, style, object, embed, base, link, meta").length,
      }));
      assert.equal(found.pwned, null);
      assert.deepEqual(found.handlers, []);
      assert.equal(found.forms, 0, found.tags.join());
      assert.ok(found.targets.length >= 2 && found.targets.every((scheme) => scheme === "https:"), found.targets.join());
      assert.match(await attack.innerText(), /<script>window\.pwned = 1<\/script>/);
      // The same as a conversation's name, in the list, behind a reload, and out of a file.
      await say(page, "<img src=x onerror='window.pwned=20'>");
      await page.reload();
      await page.locator(".assistant").first().waitFor();
      await page.click("#new");
      await say(page, "<img src=x onerror='window.pwned=21'>");
      await page.waitForTimeout(200);
      assert.equal(await page.evaluate(() => window.pwned ?? null), null);
    });
  },

  async "the policy lets nothing through, were there a hole"(browser, { gruff }) {
    await visit(browser, gruff, { ...DESKTOP, expects: /Trusted(HTML|Script)|Content Security Policy|ERR_BLOCKED_BY_CSP|violates/ }, async (open) => {
      const page = await open();
      await ready(page);
      const refused = await page.evaluate(async () => {
        const refuses = async (act) => {
          try {
            await act();
            return false;
          } catch {
            return true;
          }
        };
        const script = document.createElement("script");
        return {
          markup: await refuses(() => (document.body.innerHTML += "<p>")),
          script: await refuses(() => (script.text = "window.pwned = 1")),
          outside: await refuses(() => fetch("http://127.0.0.1:1/")),
        };
      });
      assert.deepEqual(refused, { markup: true, script: true, outside: true });
    });
  },

  async "no text takes long to show"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      const start = Date.now();
      await say(page, "some slow text");
      await page.waitForFunction(() => document.querySelector(".assistant").innerText.length > 100_000);
      assert.ok(Date.now() - start < 15_000, `${Date.now() - start} ms`);
      const elements = await page.evaluate(() => document.querySelectorAll(".assistant *").length);
      assert.ok(elements < 100_000, `${elements} elements`);
    });
  },

  async "markdown, reasoning and calls have their shapes"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open, context) => {
      await context.grantPermissions(["clipboard-read", "clipboard-write"]);
      const page = await open();
      await ready(page);
      await say(page, "markdown");
      const shape = await answer(page).evaluate((root) => {
        const walk = (node) => (node.nodeType === 3 ? "" : `${node.localName}(${[...node.childNodes].map(walk).filter(Boolean).join(" ")})`);
        return [...root.children].map(walk);
      });
      assert.deepEqual(shape, [
        "h3()", "p(strong() em() code() del() a())", "ol(li() li(ul(li() li(input()))))", "blockquote(p())",
        "div(table(thead(tr(th() th())) tbody(tr(td() td()))))", "figure(figcaption(span() button()) pre(code()))",
      ]);
      await answer(page).getByText("Copy").click();
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'fn main() { println!("<hi>"); }');
      await say(page, "think");
      const fold = page.locator(".reasoning").last();
      assert.equal(await fold.evaluate((node) => node.open), false);
      await fold.locator("summary").click();
      assert.equal(await fold.locator(".reasoning-body").innerText(), "Let me think about it.");
      assert.equal(await answer(page).innerText(), "It is so.");
      await page.keyboard.press("Control+,");
      await page.getByText("Tools", { exact: true }).click();
      await page.fill("#set-tools", "[{]");
      await page.press("#set-tools", "Tab");
      await page.getByText("This is no JSON").waitFor();
      await page.fill("#set-tools", '[{"type": "function", "function": {"name": "weather"}}]');
      await page.press("#set-tools", "Tab");
      await page.keyboard.press("Escape");
      await say(page, "the weather?");
      assert.equal(fake.requests.at(-1).tools[0].function.name, "weather");
      assert.equal(JSON.parse(await page.locator(".call > pre").innerText()).place, "<b>Oslo</b>");
      await page.getByLabel("Result of weather").fill("sun");
      await page.getByText("Give the result").click();
      await said(page, "You said: tool gave sun");
      const [call, result] = fake.requests.at(-1).messages.slice(-2);
      assert.deepEqual([call.tool_calls[0].id, call.content, result], ["call_1", "I look.", { role: "tool", tool_call_id: "call_1", content: "sun" }]);
    });
  },

  async "faults are told, and one can go on"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      const table = { "busy?": /come again/, breaks: /before (it|the answer) (was whole|did)/, fails: /the engine has stopped/ };
      for (const [text, fault] of Object.entries(table)) {
        await say(page, text);
        assert.match(await page.locator(".fault:visible").last().innerText(), fault);
      }
      await say(page, "fine");
      assert.equal(await answer(page).innerText(), "You said: fine");
      // Of the answer that was refused nothing is left, and no two messages of one side stand in a row.
      const roles = fake.requests.at(-1).messages.map(({ role }) => role);
      assert.ok(roles.every((role, i) => role !== roles[i - 1]), roles.join());
    });
  },

  async "messages are edited, files attached, settings sent"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      await page.keyboard.press("Control+,");
      const values = { system: "Be brief.", temperature: "0.5", top_p: "0.9", top_k: "20", max_tokens: "99" };
      for (const [name, value] of Object.entries(values)) await page.fill(`#set-${name}`, value);
      await page.selectOption("#set-theme", "dark");
      await page.keyboard.press("Escape");
      await page.selectOption("#reasoning", "off");
      const folder = await mkdtemp(path.join(tmpdir(), "page-"));
      await writeFile(path.join(folder, "notes.md"), "a\n```\nb\n");
      await writeFile(path.join(folder, "picture.png"), Buffer.from([0x89, 0x50, 0, 0xff]));
      await page.setInputFiles("#file-input", [path.join(folder, "notes.md"), path.join(folder, "picture.png")]);
      await page.getByText("picture.png is no text").waitFor();
      await page.fill("#composer", "line one");
      await page.press("#composer", "Shift+Enter");
      await page.keyboard.type("line two");
      await page.press("#composer", "Enter");
      await done(page);
      await answer(page).getByText("You said").waitFor();
      const { messages, model, stream, stream_options: options, ...rest } = fake.requests.at(-1);
      assert.deepEqual(rest, { temperature: 0.5, top_p: 0.9, top_k: 20, max_tokens: 99, reasoning_effort: "none" });
      assert.deepEqual([model, stream, options], ["bundled", true, { include_usage: true }]);
      assert.deepEqual(messages, [
        { role: "system", content: "Be brief." },
        { role: "user", content: "File `notes.md`:\n\n````\na\n```\nb\n````\n\nline one\nline two" },
      ]);
      await say(page, "second");
      await page.press("#composer", "ArrowUp");
      await page.getByLabel("Edit the message").fill("changed");
      await page.keyboard.press("Enter");
      await said(page, "You said: changed");
      assert.equal(await page.getByText("second").count(), 0);
      assert.equal(fake.requests.at(-1).messages.length, 4);
      await page.reload();
      assert.equal(await page.locator("html").getAttribute("data-theme"), "dark");
      await rm(folder, { recursive: true });
    });
  },

  async "conversations are renamed, found, exported, brought back"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      await say(page, "first subject");
      await page.click("#menu-button");
      await page.getByRole("menuitem", { name: "Rename" }).click();
      await page.fill("#ask-input", "A better name");
      await page.press("#ask-input", "Enter");
      await page.locator("#title", { hasText: "A better name" }).waitFor();
      await page.keyboard.press("Control+Shift+O");
      await say(page, "other things");
      await page.keyboard.press("Control+k");
      await page.keyboard.type("FIRST subject");
      assert.deepEqual(await page.locator("#conversations a").allInnerTexts(), ["A better name"]);
      await page.keyboard.press("Enter");
      await said(page, "You said: first subject");
      const take = async (click) => {
        const [download] = await Promise.all([page.waitForEvent("download"), click()]);
        return [download.suggestedFilename(), await readFile(await download.path(), "utf8"), await download.path()];
      };
      const fromMenu = (name) => async () => {
        await page.click("#menu-button");
        await page.getByRole("menuitem", { name }).click();
      };
      const [name, text] = await take(fromMenu("Markdown"));
      assert.equal(name, "A-better-name.md");
      assert.match(text, /^# A better name\n\n## You\n\nfirst subject\n\n## \S+\n\nYou said: first subject\n$/);
      const [, json, file] = await take(fromMenu("JSON"));
      assert.equal(JSON.parse(json).conversations[0].messages.length, 2);
      await page.click("#open-settings");
      await page.locator("summary", { hasText: "Conversations" }).click();
      await page.click("#delete-all");
      await page.click("#ask-ok");
      await page.getByText("No conversations yet.").waitFor();
      await page.setInputFiles("#import-input", file);
      await page.locator("#conversations a").click();
      await said(page, "You said: first subject");
      const broken = file + ".broken";
      await writeFile(broken, JSON.stringify({ conversations: [{ id: 1 }] }));
      await page.setInputFiles("#import-input", broken);
      await page.getByText("1 of 1 conversations in this file are damaged.").waitFor();
    });
  },

  async "it fits a phone"(browser, { fake }) {
    await visit(browser, fake.address, PHONE, async (open) => {
      const page = await open();
      await ready(page);
      for (const text of ["markdown", "hostile", "the weather?", `${"x".repeat(500)} think`]) await say(page, text);
      const wide = () => page.evaluate(() => ({
        page: document.documentElement.scrollWidth - innerWidth,
        parts: [...document.querySelectorAll(".main *")].filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !node.closest("pre, .table, .hidden, .title")).map((node) => node.outerHTML.slice(0, 80)),
      }));
      assert.deepEqual(await wide(), { page: 0, parts: [] });
      const small = await page.evaluate(() => [...document.querySelectorAll(".bar button, .composer button, .actions button")]
        .filter((node) => node.offsetParent && Math.min(node.offsetWidth, node.offsetHeight) < 32).length);
      assert.equal(small, 0, "buttons too small for a finger");
      await page.click("#open-sidebar");
      await page.getByText("New conversation").first().waitFor();
      await page.click("#open-settings");
      assert.ok((await page.locator("#settings").boundingBox()).width <= 360);
      await page.keyboard.press("Escape");
    });
  },

  async "everything has a name, and the keyboard reaches it"(browser, { fake }) {
    await visit(browser, fake.address, DESKTOP, async (open) => {
      const page = await open();
      await ready(page);
      await say(page, "think");
      const nameless = await page.evaluate(() => [...document.querySelectorAll("button, input, select, textarea, a, meter, dialog, nav")]
        .filter((node) => node.checkVisibility() && !node.getAttribute("aria-label") && !node.getAttribute("aria-labelledby") && !node.innerText?.trim() && !node.textContent.trim() && !node.labels?.length && node.tabIndex >= 0)
        .map((node) => node.outerHTML));
      assert.deepEqual(nameless, []);
      const seen = new Set();
      await page.locator("#open-sidebar").focus();
      for (let i = 0; i < 14; i += 1) {
        await page.keyboard.press("Tab");
        seen.add(await page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.localName));
      }
      for (const id of ["model", "menu-button", "summary", "Answer again", "composer", "attach"]) assert.ok(seen.has(id), `${id}: ${[...seen]}`);
      assert.match(await page.locator("#status").innerText(), /The answer is complete\. It is so\./);
    });
  },
};

/** Pictures of a conversation with the bundled model, for the documentation and for looking at. */
async function shots(browser, address) {
  for (const [name, options] of [["desktop", DESKTOP], ["dark", { ...DESKTOP, colorScheme: "dark" }], ["phone", PHONE]]) {
    await visit(browser, address, options, async (open) => {
      const page = await open();
      await ready(page);
      await page.evaluate(() => localStorage.setItem("gruff.settings", JSON.stringify({ temperature: "0", reasoning: "on" })));
      await page.reload();
      await ready(page);
      for (const text of ["What is the capital of France?", "What is the opposite of hot?", "Who are you?"]) await say(page, text);
      await page.locator(".reasoning summary").last().click();
      await page.waitForTimeout(300);
      await page.screenshot({ path: path.join(SHOTS, `page-${name}.png`) });
    });
  }
}

const [gruff, locked] = await Promise.all([serve(), serve("--api-key", KEY)]);
const fake = await scripted(gruff.address);
const home = await mkdtemp(path.join(tmpdir(), "chromium-"));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  env: { ...process.env, HOME: home },
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let failed = 0;
try {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check(browser, { gruff: gruff.address, locked: locked.address, fake });
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
  if (SHOTS) await shots(browser, gruff.address);
} finally {
  await browser.close();
  fake.close();
  gruff.stop();
  locked.stop();
  await rm(home, { recursive: true, force: true });
}
console.log(`${Object.keys(checks).length - failed} of ${Object.keys(checks).length} hold`);
process.exitCode = failed ? 1 : 0;
