// Smoothing, as in the reports.

/** Trailing mean over up to `window` values; gaps stay gaps. */
export function smoothed(values, window) {
  if (window <= 1) return values;
  return values.map((value, place) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, place - window + 1), place + 1).filter((each) => each !== null);
    return near.reduce((sum, each) => sum + each, 0) / near.length;
  });
}
