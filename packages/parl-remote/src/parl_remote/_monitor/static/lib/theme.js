// Colours of the style sheet for what is drawn on a canvas, and a sign when they change.

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function onTheme(redraw) {
  document.addEventListener("parl:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
