// The API of this server, as every other client uses it.

/** A request that was not served: the status, and a sentence that says why. */
export class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** What the server says of its agent. */
export async function facts(token) {
  const response = await fetch("/v1/models", { headers: authorization(token) });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).data[0];
}

/** The chunks of an answer, as they come. */
export async function* answer(body, token, signal) {
  const wanted = { ...body, stream: true, stream_options: { include_usage: true } };
  const headers = { "content-type": "application/json", ...authorization(token) };
  const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(wanted), signal });
  if (!response.ok) throw await refusal(response);
  for await (const text of events(response.body)) {
    if (text === "[DONE]") return;
    const chunk = JSON.parse(text);
    if (chunk.error) throw new Refusal(0, chunk.error.message);
    yield chunk;
  }
  throw new Refusal(0, "the connection broke off before the answer was whole");
}

/** The contents of server-sent events; comments, which are signs of life, are left out. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const pieces = (held + part.value).split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) if (piece.startsWith("data: ")) yield piece.slice(6);
  }
}

async function refusal(response) {
  const text = await response.text();
  try {
    return new Refusal(response.status, JSON.parse(text).error.message);
  } catch {
    return new Refusal(response.status, `the server answered ${response.status}`);
  }
}

function authorization(token) {
  return token ? { authorization: `Bearer ${token}` } : {};
}
