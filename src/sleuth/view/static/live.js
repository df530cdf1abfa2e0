// Polling while the page is visible.

/** Call `ask` every few seconds while visible, never concurrently; returns a function that stops. */
export function repeat(ask, seconds) {
  let timer = null;
  let stopped = false;
  const next = () => {
    if (!stopped) timer = window.setTimeout(round, seconds * 1000);
  };
  const round = async () => {
    if (!document.hidden) await ask();
    next();
  };
  next();
  return () => {
    stopped = true;
    window.clearTimeout(timer);
  };
}
