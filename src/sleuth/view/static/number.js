// Number formats.

export const ABSENT = "–";

/** A number with significant digits; a dash if absent. */
export function short(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return ABSENT;
  const size = Math.abs(value);
  if (Number.isInteger(value)) return size < 100000 ? value.toLocaleString("en") : compact(value);
  if (size >= 100000) return compact(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.01) return value.toFixed(size < 0.1 ? 3 : 2);
  return value.toExponential(1);
}

/** A number with its sign. */
export function signed(value) {
  const text = short(value);
  return typeof value === "number" && value > 0 ? `+${text}` : text.replace("-", "−");
}

/** An estimate with its 95% interval. */
export function interval(estimate) {
  return estimate ? `${share(estimate.value)} [${share(estimate.low)}, ${share(estimate.high)}]` : ABSENT;
}

/** A figure with two decimals. */
export function share(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return ABSENT;
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(2);
}

/** Seconds as a duration. */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return ABSENT;
  if (seconds < 60) return `${short(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 1440)} days`;
}

/** An exact count. */
export function whole(count) {
  return typeof count === "number" ? count.toLocaleString("en") : ABSENT;
}

/** A count with its noun. */
export function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

function compact(value) {
  return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
}
