// Whether the server lives: asked every EVERY ms, given PATIENCE ms to answer, so that its death is known within 3 s.
const EVERY = 1800;
const PATIENCE = 1000;

/** Calls `told("ok" | "draining" | "dead")` when the state changes; `.check()` asks at once. */
export function watchHealth(told) {
  let state = "ok";
  let asking = null;

  async function ask() {
    try {
      const answer = await fetch("/health", { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
      return answer.ok ? (await answer.json()).status ?? "ok" : "dead";
    } catch {
      return "dead";
    }
  }

  async function check() {
    asking ??= ask().finally(() => (asking = null));
    const next = await asking;
    if (next === state) return state;
    state = next;
    told(state);
    return state;
  }

  setInterval(() => document.hidden || check(), EVERY);
  document.addEventListener("visibilitychange", () => document.hidden || check());
  return { check, state: () => state };
}
