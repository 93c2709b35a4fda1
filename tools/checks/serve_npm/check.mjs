// The `openai` package of npm, unmodified, against a server with the bundled model.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.GRUFF_URL, apiKey: process.env.GRUFF_KEY, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const request = { model, messages, temperature: 0, max_tokens: 32 };

const whole = await client.chat.completions.create(request);
const text = whole.choices[0].message.content;
assert.match(text, /Paris/);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(streamed, text);
const runner = client.chat.completions.stream(request);
assert.equal((await runner.finalChatCompletion()).choices[0].message.content, text);

const parameters = { type: "object", properties: { days: { type: "integer", minimum: 1, maximum: 9 } }, required: ["days"] };
const called = await client.chat.completions.create({
  ...request,
  max_tokens: 200,
  tools: [{ type: "function", function: { name: "weather", parameters } }],
  tool_choice: { type: "function", function: { name: "weather" } },
  parallel_tool_calls: false,
});
const call = called.choices[0].message.tool_calls[0].function;
assert.equal(call.name, "weather");
assert.ok(JSON.parse(call.arguments).days >= 1);

// This client asks for base64 by itself and gives numbers.
const embedded = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
assert.equal(embedded.data.length, 2);
const length = Math.hypot(...embedded.data[0].embedding);
assert.ok(Math.abs(length - 1) < 1e-4, `${length}`);

const response = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0 });
assert.match(response.output_text, /Paris/);
let deltas = "";
for await (const event of await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, stream: true })) {
  if (event.type === "response.output_text.delta") deltas += event.delta;
}
assert.equal(deltas, response.output_text);
await assert.rejects(client.chat.completions.create({ ...request, top_p: 7 }), OpenAI.BadRequestError);
console.log("npm's openai is served");
