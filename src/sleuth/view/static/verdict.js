// Stop reasons and verdicts.

import { short } from "./number.js";

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
export function verdict({ stop, em, reward, reward_by: by, golden_answers: golden }) {
  if (UNUSABLE.has(stop)) return ["unusable", "quiet"];
  // Without a right answer, only the agent can tell.
  if (by && !golden.length) return [`reward ${short(reward)}`, reward >= 1 ? "good" : reward <= 0 ? "bad" : "quiet"];
  const value = em ?? reward;
  if (value === null || value === undefined) return ["not scored", "quiet"];
  return value >= 1 ? ["right", "good"] : ["wrong", "bad"];
}
