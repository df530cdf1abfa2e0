// A search agent in JavaScript, started once for each attempt. It needs Node 18 or newer and no packages.
// In this folder: sleuth train quickstart-tools --set agent.command="node agent.mjs"

const env = process.env;

async function post(url, body) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${env.OPENAI_API_KEY}` };
  const reply = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}

async function search(query) {
  const { result } = await post(env.SLEUTH_SEARCH_URL, { queries: [query], return_scores: true });
  return result[0].map((hit) => hit.document.contents).join("\n");
}

const parameters = { type: "object", properties: { query: { type: "string" } }, required: ["query"] };
const tools = [{ type: "function", function: { name: "search", description: "Search the encyclopedia.", parameters } }];
const messages = [{ role: "user", content: env.SLEUTH_QUESTION }];

for (;;) {
  const body = { model: env.OPENAI_MODEL, messages, tools };
  const { message } = (await post(`${env.OPENAI_BASE_URL}/chat/completions`, body)).choices[0];
  messages.push(message);
  if (!message.tool_calls?.length) break; // the content is the answer; the run's rubric scores it
  for (const call of message.tool_calls) {
    const { query } = JSON.parse(call.function.arguments);
    messages.push({ role: "tool", tool_call_id: call.id, content: await search(String(query)) });
  }
}
