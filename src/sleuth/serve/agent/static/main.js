// The playground: a question is sent, and its transcript grows while the agent works.

import { answer, facts, Refusal } from "./client.js";
import { described, Transcript } from "./transcript.js";

const find = (id) => document.getElementById(id);
const running = new Set();

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = find("question").value.trim();
  if (question) ask(question);
});

find("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("form").requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") [...running].at(-1)?.abort();
});

find("token").addEventListener("change", introduce);
introduce();

async function ask(question) {
  const control = new AbortController();
  const transcript = new Transcript(question, () => control.abort());
  find("transcripts").prepend(transcript.element);
  running.add(control);
  try {
    for await (const chunk of answer(wish(question), find("token").value, control.signal)) transcript.take(chunk);
  } catch (error) {
    transcript.fail(control.signal.aborted ? "stopped" : sentence(error));
  } finally {
    running.delete(control);
  }
}

/** What is asked for: options left empty are the server's to choose. */
function wish(question) {
  const chosen = { temperature: "temperature", seed: "seed", max_tokens: "tokens" };
  const numbers = Object.entries(chosen)
    .filter(([, id]) => find(id).value !== "")
    .map(([name, id]) => [name, Number(find(id).value)]);
  return { messages: [{ role: "user", content: question }], ...Object.fromEntries(numbers) };
}

async function introduce() {
  try {
    find("facts").textContent = described(await facts(find("token").value));
  } catch (error) {
    find("facts").textContent = sentence(error);
  }
}

function sentence(error) {
  if (!(error instanceof Refusal)) return "the server cannot be reached";
  if (error.status === 401) find("locked").hidden = false;
  return error.message;
}
