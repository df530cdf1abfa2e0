// Asking again and again while somebody looks.

/** Calls `ask` every few seconds while the page is visible, never twice at once; returns how to stop. */
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
