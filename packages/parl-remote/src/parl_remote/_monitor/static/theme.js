// Runs before the first paint: the theme that was chosen here, else what the system prefers.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("parl-theme");
  } catch {
    // storage may be forbidden; the system's preference will do
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
