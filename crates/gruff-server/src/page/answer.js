// An answer: what the server is asked, and what comes back, put into a message.

import { chat, Refused } from "./api.js";
import { withFiles } from "./files.js";

/** What the model is given of a conversation up to (not including) the answer that is wanted. */
export function requestMessages(messages, system) {
  const request = system.trim() ? [{ role: "system", content: system }] : [];
  for (const message of messages) {
    const last = request.at(-1);
    if (message.role === "user") {
      const content = withFiles(message);
      // Behind an answer that failed there are two messages in a row, which not every template takes.
      if (last?.role === "user") last.content += `\n\n${content}`;
      else request.push({ role: "user", content });
    } else if (message.role === "tool") {
      request.push({ role: "tool", tool_call_id: message.call, content: message.text });
    } else if (message.text || message.calls?.length) {
      const answer = { role: "assistant", content: message.text };
      if (message.reasoning) answer.reasoning_content = message.reasoning;
      if (message.calls?.length) {
        answer.tool_calls = message.calls.map(({ id, name, arguments: text }) => ({
          id, type: "function", function: { name, arguments: text },
        }));
      }
      request.push(answer);
    }
  }
  return request;
}

/** The request that settings make. What is empty is left out, so that the server's own choice holds. */
export function requestBody(messages, settings, model) {
  const body = { messages: requestMessages(messages, settings.system) };
  if (model) body.model = model;
  for (const name of ["temperature", "top_p", "top_k", "max_tokens"]) {
    const value = Number.parseFloat(settings[name]);
    if (Number.isFinite(value)) body[name] = value;
  }
  if (settings.reasoning !== "auto") body.reasoning_effort = settings.reasoning === "on" ? "medium" : "none";
  const tools = parseTools(settings.tools);
  if (tools.length) body.tools = tools;
  return body;
}

/** The tools that were written down; throws what is wrong with them. */
export function parseTools(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("Write a list: [ … ].");
  const fault = tools.findIndex((tool) => typeof tool?.function?.name !== "string");
  if (fault !== -1) throw new Error(`Tool ${fault + 1} has no "function" with a "name".`);
  return tools;
}

/** Fills `message` with the answer to `body`; `changed` is called whenever there is more of it. */
export async function answer(message, body, key, signal, changed) {
  const began = performance.now();
  let finished = false;
  try {
    for await (const chunk of chat(body, key, signal)) {
      if (chunk.model) message.model = chunk.model;
      if (chunk.usage) {
        message.usage = {
          prompt: chunk.usage.prompt_tokens ?? 0,
          completion: chunk.usage.completion_tokens ?? 0,
          cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
        };
      }
      if (chunk.timings) message.speed = chunk.timings.predicted_per_second;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      take(message, choice.delta ?? {}, performance.now() - began);
      if (choice.finish_reason) {
        finished = true;
        message.finish = choice.finish_reason;
      }
      changed();
    }
    if (!finished) message.error = "The connection ended before the answer did.";
  } catch (error) {
    if (signal.aborted) message.stopped = true;
    else if (error instanceof Refused) Object.assign(message, { error: error.message, status: error.status });
    else message.error = finished ? undefined : "The connection broke before the answer was whole.";
  }
}

function take(message, delta, elapsed) {
  const text = typeof delta.content === "string" ? delta.content : "";
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  if (!message.first && (text || reasoning || delta.tool_calls)) message.first = elapsed;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if ((text || delta.tool_calls) && message.reasoning && !message.thought) {
    message.thought = elapsed - message.first;
  }
  message.text += text;
  for (const part of delta.tool_calls ?? []) {
    message.calls ??= [];
    const call = (message.calls[part.index ?? 0] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name += part.function.name;
    if (part.function?.arguments) call.arguments += part.function.arguments;
  }
}
