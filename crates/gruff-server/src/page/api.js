// The server's API: OpenAI's, as this page uses it.

/** What the server refused, or what kept a request from it. */
export class Refused extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  let message = `The server answered with status ${response.status}.`;
  try {
    const body = await response.json();
    if (typeof body?.error?.message === "string") message = body.error.message;
  } catch {
    // What is no JSON is of some proxy in between; its status says enough.
  }
  const wait = Number(response.headers.get("retry-after"));
  throw new Refused(message, response.status, Number.isFinite(wait) && wait > 0 ? wait : null);
}

/** The models of the server. */
export async function models(key) {
  const body = await (await request("v1/models", { headers: headers(key) })).json();
  return Array.isArray(body?.data) ? body.data.filter((model) => typeof model?.id === "string") : [];
}

/** Starts an answer and gives its chunks as they come. `signal` ends it. */
export async function* chat(body, key, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      throw new Refused("The server sent something that is no JSON.");
    }
    if (chunk?.error) throw new Refused(chunk.error.message ?? "The server stopped with an error.", 500);
    yield chunk;
  }
}

/** The data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let [rest, data] = ["", []];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (let line of lines) {
        if (line.endsWith("\r")) line = line.slice(0, -1);
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
