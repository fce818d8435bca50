// Numbers for people. Unknown ones are a dash.

export const DASH = "–";
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : DASH;
}

export function decimal(value, digits = 2) {
  if (!known(value)) return DASH;
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

export function rate(value) {
  if (!known(value)) return DASH;
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(value < 0.1 ? 2 : 1);
  if (value < 10000) return count(value);
  return value < 1e6 ? `${decimal(value / 1e3, 1)}k` : `${decimal(value / 1e6, 1)}M`;
}

export function percent(value) {
  if (!known(value)) return DASH;
  return `${value > 0 && value < 0.01 ? "<1" : Math.round(value * 100)}%`;
}

export function bytes(value) {
  if (!known(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (value >= 1024 && step < units.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${step === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[step]}`;
}

export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[first];
  const whole = Math.floor(seconds / size);
  const next = units[first + 1];
  const rest = next ? Math.floor((seconds - whole * size) / next[1]) : 0;
  return `${whole} ${name}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

export function clock(epoch, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  return new Date(epoch * 1000).toLocaleTimeString("en-GB", withSeconds ? { ...options, second: "2-digit" } : options);
}

export function moment(epoch) {
  if (!epoch) return DASH;
  const date = new Date(epoch * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return `${today ? "" : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `}${clock(epoch)}`;
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
