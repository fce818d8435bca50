// What all pages share: the theme, the sign that says whether numbers are fresh, signing out, the "/" key.
import { post } from "./lib/api.js";

const root = document.documentElement;

document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("parl-theme", root.dataset.theme);
  } catch {
    // then it lasts for this page
  }
  document.dispatchEvent(new Event("parl:theme"));
});

document.getElementById("signout")?.addEventListener("click", async () => {
  await post("/logout").catch(() => {});
  location.assign("/");
});

const live = document.getElementById("live");
document.addEventListener("parl:live", ({ detail }) => {
  live.dataset.state = detail.ok ? "ok" : "bad";
  live.querySelector("span").textContent = detail.ok ? "live" : detail.reason;
  live.title = detail.ok ? "The master has answered recently" : detail.reason;
});
if (location.pathname === "/login") live.hidden = true;

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const field = document.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});
