// Elements without HTML in text: whatever a user has named anything can only ever become text.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

// Buttons of which one is pressed; calls back with its value.
export function segmented(container, options, chosen, onChoose) {
  const buttons = options.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, label),
  );
  function choose(value) {
    options.forEach(([other], i) => buttons[i].setAttribute("aria-pressed", String(other === value)));
    onChoose(value);
  }
  container.replaceChildren(...buttons);
}

// Facts as a description list; values may be elements. Unchanged ones are left alone, so that text can be selected.
export function facts(list, pairs) {
  const wanted = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (list.children.length !== wanted.length) {
    list.replaceChildren(...wanted.map(([name]) => h("div", {}, h("dt", {}, name), h("dd"))));
  }
  wanted.forEach(([name, value], i) => {
    const [term, detail] = list.children[i].children;
    if (term.textContent !== name) term.textContent = name;
    if (value instanceof Node) {
      if (detail.textContent !== value.textContent || !detail.firstElementChild) detail.replaceChildren(value);
    } else if (detail.textContent !== String(value)) detail.textContent = value;
  });
}

export function notice(container, text, kind = "bad") {
  container.replaceChildren(...(text ? [h("p", { class: `notice ${kind}`, role: "status" }, text)] : []));
}

export function pill(state) {
  return h("span", { class: `pill ${state}` }, state.replaceAll("_", " "));
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

function fill(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
}
