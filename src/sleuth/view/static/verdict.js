// How a trajectory ended, in a word.

export const STOPS = {
  answered: "answered",
  out_of_turns: "no turns left",
  out_of_tokens: "no tokens left",
  search_unavailable: "search failed",
  engine_failed: "generation failed",
  function_failed: "user function failed",
};
const UNUSABLE = new Set(["search_unavailable", "engine_failed", "function_failed"]);

/** [word, tone]: right, wrong or in between; what failed through no fault of the model is never called wrong. */
export function verdict({ stop, em, reward }) {
  if (UNUSABLE.has(stop)) return ["unusable", "quiet"];
  const value = em ?? reward;
  if (value === null || value === undefined) return ["not scored", "quiet"];
  return value >= 1 ? ["right", "good"] : ["wrong", "bad"];
}
