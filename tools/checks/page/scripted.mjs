// A server that has gruff's page and a model that says what the check wants it to say: the last message's text names
// the script. Everything but chat is passed on to a real `gruff serve`.

import http from "node:http";

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** What somebody who owns the model's output would try. */
export const HOSTILE = [
  "<script>window.pwned = 1</script>",
  "<img src=x onerror=\"window.pwned = 2\">",
  "<svg/onload=window.pwned=3><iframe srcdoc='<script>parent.pwned=4</script>'></iframe>",
  "[click](javascript:window.pwned=5) [click](  JaVaScRiPt:window.pwned=6) [x](data:text/html,<script>1</script>) [x](vbscript:x)",
  "![](javascript:window.pwned=7) ![image](https://outside.example/track.png) <https://ok.example/\"onmouseover=\"window.pwned=8>",
  "`<b>`**<i>bold</i>**_<u onclick=window.pwned=9>x</u>_ [<img src=x onerror=window.pwned=10>](https://ok.example/)",
  "```html\" onclick=\"window.pwned=11\n</code></pre><script>window.pwned = 12</script>\n```",
  "| <script>window.pwned=13</script> | b |\n|---|---|\n| <img src=x onerror=window.pwned=14> | [a](javascript:1) |",
  "<a href=\"javascript:window.pwned=15\">a</a> <style>* { display: none }</style> <form action=//outside.example><button>x",
  "&lt;script&gt;window.pwned=16&lt;/script&gt; &#x6A;avascript:1 \u202e\u0000",
].join("\n\n");

/** Texts that a careless renderer takes minutes for. */
export const SLOW = [
  "*".repeat(20000), "[".repeat(20000), "> ".repeat(5000), `${"- ".repeat(5000)}x`, "*a ".repeat(10000), "_a_b".repeat(10000),
  `a|b\n-${" ".repeat(20000)}x`, `# ${" ".repeat(20000)}#x`, `\`\`\` ${" ".repeat(20000)}\`x`, "`".repeat(9999),
  "![".repeat(10000), "](".repeat(10000), "~~".repeat(10000), "<http://".repeat(5000), `| ${"a | ".repeat(5000)}\n|${"---|".repeat(5000)}`,
  "**a *b ".repeat(5000), "[a](b".repeat(5000), "http://".repeat(5000), `${"1. a\n\n".repeat(2000)}`,
  // Short rows of wide tables: each would be filled up to the width of the head.
  `${"|a".repeat(10000)}|\n${"|-".repeat(10000)}|\n${"|x\n".repeat(10000)}`,
  `${"|a".repeat(150)}|\n${"|-".repeat(150)}|\n${"|x\n".repeat(10000)}`,
].join("\n\n");

const MARKDOWN = `# Heading

Some **bold**, *slanted*, \`code\`, ~~gone~~ and a [link](https://example.com/a_b).

1. one
2. two
   - inner
   - [x] done

> quoted

| left | right |
|:-----|------:|
| a    | 1     |

\`\`\`rust
fn main() { println!("<hi>"); }
\`\`\``;

async function* script(text, signal) {
  const delta = (delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] });
  const end = (reason = "stop") => ({ choices: [{ index: 0, delta: {}, finish_reason: reason }], timings: { predicted_per_second: 41.5 } });
  const usage = { choices: [], usage: { prompt_tokens: 300, completion_tokens: 44, prompt_tokens_details: { cached_tokens: 256 } } };
  const pieces = (text, size) => text.match(new RegExp(`[^]{1,${size}}`, "g")).map((content) => delta({ content }));
  if (text.includes("markdown")) yield* pieces(MARKDOWN, 3);
  else if (text.includes("hostile")) yield* pieces(HOSTILE, 7);
  else if (text.includes("slow text")) yield* pieces(SLOW, 4000);
  else if (text.includes("think")) {
    for (const word of ["Let me ", "think ", "about **it**."]) yield delta({ reasoning_content: word });
    yield delta({ content: "It is so." });
  } else if (text.includes("weather")) {
    yield delta({ content: "I look." });
    yield delta({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: "" } }] });
    for (const part of ['{"pla', 'ce": "<b>Oslo</b>"}']) yield delta({ tool_calls: [{ index: 0, function: { arguments: part } }] });
    yield end("tool_calls");
    yield usage;
    return;
  } else if (text.includes("endless")) {
    for (let i = 0; !signal.aborted; i += 1) {
      yield delta({ content: `word${i} ` });
      await pause(20);
    }
  } else if (text.includes("breaks")) {
    yield delta({ content: "Half of" });
    await pause(50);
    throw new Error("cut");
  } else if (text.includes("fails")) {
    yield delta({ content: "Then" });
    yield { error: { message: "the engine has stopped", type: "server_error" } };
    return;
  } else yield delta({ content: `You said: ${text}` });
  yield end();
  yield usage;
}

/** Starts it; `requests` collects the bodies of what was asked. */
export async function scripted(upstream) {
  const requests = [];
  const server = http.createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    if (request.url !== "/v1/chat/completions") {
      const passed = await fetch(upstream + request.url, { headers: { ...(request.headers.authorization && { authorization: request.headers.authorization }) } });
      const headers = Object.fromEntries(passed.headers);
      delete headers["transfer-encoding"];
      response.writeHead(passed.status, headers);
      response.end(Buffer.from(await passed.arrayBuffer()));
      return;
    }
    const body = JSON.parse(Buffer.concat(chunks));
    requests.push(body);
    const last = body.messages.at(-1);
    // Behind an answer that failed, messages come together.
    const text = last.content.split("\n\n").at(-1);
    if (text.includes("busy")) {
      response.writeHead(429, { "Content-Type": "application/json", "Retry-After": "1" });
      response.end(JSON.stringify({ error: { message: "64 answers wait already; come again" } }));
      return;
    }
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    try {
      for await (const chunk of script(last.role === "tool" ? `tool gave ${text}` : text, gone.signal)) {
        response.write(`data: ${JSON.stringify(chunk)}\n\n`);
      }
      response.end("data: [DONE]\n\n");
    } catch {
      response.destroy();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { address: `http://127.0.0.1:${server.address().port}`, requests, close: () => server.closeAllConnections() ?? server.close() };
}
