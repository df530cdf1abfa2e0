// Requests to the server; errors carry the server's message.

/** GET a path; null, undefined and empty parameters are omitted, lists are repeated. */
export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, each);
    }
  }
  const text = query.toString();
  const answer = await reached(`/api/${path}${text ? `?${text}` : ""}`, signal);
  if (!answer.ok) throw new Error(await sentence(answer));
  return answer.json();
}

/** Request repeatedly until indexing is complete, calling back with each response. */
export async function whole(path, parameters, signal, told) {
  for (;;) {
    const answer = await ask(path, parameters, signal);
    told(answer);
    if (answer.complete !== false) return;
  }
}

/** Whether an error is only an aborted request. */
export function abandoned(error) {
  return error.name === "AbortError";
}

async function reached(address, signal) {
  try {
    return await fetch(address, { signal });
  } catch (error) {
    if (abandoned(error)) throw error;
    throw new Error("The server does not respond; restart it with: sleuth view", { cause: error });
  }
}

async function sentence(answer) {
  const { detail } = await answer.json().catch(() => ({}));
  return typeof detail === "string" ? detail : `The server responded with status ${answer.status}.`;
}
