// OpenAI's SDK for Node: does every feature and prints what it was told, as JSON.

import OpenAI from "openai";

const [url, key, given] = process.argv.slice(2);
const told = JSON.parse(given);
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 1 });
const messages = [{ role: "user", content: told.prompt }];
const sim = { model: "sim", messages, max_tokens: told.tokens };

async function stream() {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...sim, stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
  }
  return text;
}

async function tools() {
  const asked = { model: "tools", messages, tools: [{ type: "function", function: told.tool }] };
  const whole = await client.chat.completions.create(asked);
  const last = await client.chat.completions.stream(asked).finalChatCompletion();
  return [whole, last].flatMap((answer) => {
    const called = answer.choices[0].message.tool_calls[0].function;
    return [called.name, JSON.parse(called.arguments)];
  });
}

async function usage() {
  const found = [(await client.chat.completions.create(sim)).usage];
  const asked = { ...sim, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(asked)) {
    if (chunk.usage) found.push(chunk.usage);
  }
  return found.flatMap((each) => [each.prompt_tokens, each.completion_tokens]);
}

async function error() {
  try {
    await client.chat.completions.create({ model: told.absent, messages });
  } catch (error) {
    return [error.status, error.type, error.code];
  }
  throw new Error("there is no such model");
}

const plain = await client.chat.completions.create(sim);
const retried = await client.chat.completions.create({ model: "flaky", messages });
const models = [];
for await (const model of client.models.list()) models.push(model.id);
console.log(
  JSON.stringify({
    plain: plain.choices[0].message.content,
    stream: await stream(),
    tools: await tools(),
    usage: await usage(),
    error: await error(),
    retry: retried.choices[0].message.content,
    models,
  }),
);
