// Asking again and again, while somebody looks.

import { access } from "./api.js";

/**
 * Calls `task` every so many milliseconds, one call after the other, while the page is visible. A task that needs a key which is
 * not there is called again when there is one. Returns a function that calls it now.
 */
export function poll(period, task) {
  let timer = 0;
  let running = false;
  async function run() {
    clearTimeout(timer);
    if (running || document.hidden) return;
    running = true;
    let locked = false;
    try {
      await task();
    } catch (error) {
      locked = error.status === 401;
      if (error.status === undefined) throw error;
    } finally {
      running = false;
      if (!locked) timer = setTimeout(run, period);
    }
  }
  document.addEventListener("visibilitychange", run);
  access.addEventListener("authorized", run);
  run();
  return run;
}
