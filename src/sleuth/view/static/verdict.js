// Stop reasons and verdicts.

export const STOPS = {
  answered: "answered",
  out_of_turns: "no turns left",
  out_of_tokens: "no tokens left",
  search_unavailable: "search failed",
  engine_failed: "generation failed",
  function_failed: "user function failed",
};
const UNUSABLE = new Set(["search_unavailable", "engine_failed", "function_failed"]);

/** [label, tone]; failed episodes are unusable, never wrong. */
export function verdict({ stop, em, reward }) {
  if (UNUSABLE.has(stop)) return ["unusable", "quiet"];
  const value = em ?? reward;
  if (value === null || value === undefined) return ["not scored", "quiet"];
  return value >= 1 ? ["right", "good"] : ["wrong", "bad"];
}
