// Checks every INTERVAL ms whether the server responds within TIMEOUT ms, so that an outage is noticed within 3 s.
const INTERVAL = 1800;
const TIMEOUT = 1000;

/** Calls `onChange("ok" | "draining" | "dead")` when the state changes; `.check()` checks at once. */
export function watchHealth(onChange) {
  let state = "ok";
  let pending = null;

  async function request() {
    try {
      const response = await fetch("/health", { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store" });
      return response.ok ? (await response.json()).status ?? "ok" : "dead";
    } catch {
      return "dead";
    }
  }

  async function check() {
    pending ??= request().finally(() => (pending = null));
    const next = await pending;
    if (next === state) return state;
    state = next;
    onChange(state);
    return state;
  }

  setInterval(() => document.hidden || check(), INTERVAL);
  document.addEventListener("visibilitychange", () => document.hidden || check());
  return { check, state: () => state };
}
