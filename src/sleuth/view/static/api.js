// What the server is asked; a failure is an error whose message is the server's own sentence.

/** The answer at a path; parameters that are null, undefined or empty are left out, lists are repeated. */
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

/** Asks until the server has looked at everything, calling back with each answer on the way. */
export async function whole(path, parameters, signal, told) {
  for (;;) {
    const answer = await ask(path, parameters, signal);
    told(answer);
    if (answer.complete !== false) return;
  }
}

/** Whether an error says no more than that nobody waits for the answer. */
export function abandoned(error) {
  return error.name === "AbortError";
}

async function reached(address, signal) {
  try {
    return await fetch(address, { signal });
  } catch (error) {
    if (abandoned(error)) throw error;
    throw new Error("The server did not answer; start it again with: sleuth view", { cause: error });
  }
}

async function sentence(answer) {
  const { detail } = await answer.json().catch(() => ({}));
  return typeof detail === "string" ? detail : `The server answered with status ${answer.status}.`;
}
