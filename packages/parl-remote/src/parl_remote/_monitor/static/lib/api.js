// Talking to the monitor's API, and doing so again and again while a page is looked at.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function get(path) {
  return answer(await reach(path, { headers: { Accept: "application/json" } }));
}

export async function session() {
  return get("/api/v1/session");
}

export async function post(path, body = {}) {
  const { csrf } = await session();
  const headers = { "Content-Type": "application/json", ...(csrf ? { "X-CSRF-Token": csrf } : {}) };
  return answer(await reach(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

// Calls `update` now and every `interval` ms, never twice at once, not while the page is hidden; slower after errors.
export function poll(update, interval, { sign = true } = {}) {
  let timer = null;
  let running = false;
  let wrong = 0;
  async function turn() {
    clearTimeout(timer);
    if (running) return;
    running = true;
    try {
      await update();
      wrong = 0;
    } catch (error) {
      wrong += 1;
      if (sign) live(false, error instanceof ApiError ? error.message : "the monitor does not answer");
      if (!(error instanceof ApiError) && !(error instanceof TypeError)) console.error(error);
    } finally {
      running = false;
      if (!document.hidden) timer = setTimeout(turn, interval * Math.min(8, 2 ** wrong));
    }
  }
  document.addEventListener("visibilitychange", () => !document.hidden && turn());
  turn();
  return turn;
}

export function live(ok, reason = "") {
  document.dispatchEvent(new CustomEvent("parl:live", { detail: { ok, reason } }));
}

async function reach(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(0, "the monitor does not answer");
  }
}

async function answer(response) {
  if (response.status === 401 && response.url.includes("/api/") && response.headers.has("WWW-Authenticate")) {
    const { open } = await fetch("/api/v1/session").then((one) => (one.ok ? one.json() : { open: false }));
    if (!open) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  const type = response.headers.get("Content-Type") || "";
  const body = type.includes("json") ? await response.json() : {};
  if (!response.ok) throw new ApiError(response.status, body.error || `the monitor says ${response.status}`);
  return body;
}
