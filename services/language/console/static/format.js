// Numbers as people read them.

/** Seconds: "<0.1 ms", "0.4 ms", "23 ms", "1.23 s". */
export function duration(seconds) {
  const ms = seconds * 1000;
  if (ms >= 1000) return `${seconds.toFixed(2)} s`;
  if (ms < 0.05) return "<0.1 ms";
  return `${ms >= 10 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/** "1 picture", "2 pictures". */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** Seconds since 1970 as the time of day here. */
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
