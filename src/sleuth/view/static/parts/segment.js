// Heading of a segment: one of several token sequences of a trajectory.

import { h } from "../element.js";
import { counted } from "../number.js";

/** Whether the segments are worth a heading: there are several, or the only one has a role. */
export function segmented(segments) {
  return segments.length > 1 || segments.some(({ role }) => role);
}

/** Number, role, parent, turns and size; `continued` if the segment was shown before. */
export function segmentHeading({ role, parent, shared, turns, sampled }, number, continued = false) {
  const start = parent === null ? "new context" : `fork of segment ${parent}, ${counted(shared, "shared token")}`;
  const size = [turns.length && `turn${turns.length === 1 ? "" : "s"} ${turns.join(", ")}`, counted(sampled, "sampled token")];
  return h(
    "header",
    { class: "segment", "data-segment": number },
    h("h2", {}, `Segment ${number}`),
    role && h("span", { class: "badge", title: "role" }, role),
    h("span", { class: "quiet figure" }, continued ? "continued" : [start, ...size].filter(Boolean).join(" · ")),
  );
}
