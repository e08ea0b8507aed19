"use strict";
// A reader's choices show rendered parts; the address shows a method or a problem alone. Without JavaScript all is visible.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  for (const select of all("[data-shows]"))
    select.addEventListener("change", () => {
      for (const part of all(`[data-shown-by="${select.dataset.shows}"]`))
        part.classList.toggle("chosen", part.dataset.value === select.value);
    });

  // The map of problems and methods: the darker, the sooner
  for (const select of all("[data-heat]")) {
    const color = () => {
      for (const cell of all("td", document.getElementById(select.dataset.heat))) {
        const text = cell.dataset.epochs.split(" ")[+select.value], epochs = Math.max(parseFloat(text), 1);
        const depth = Math.max(0, 1 - Math.log(epochs) / Math.log(cell.parentNode.dataset.last));
        cell.textContent = text;
        cell.style.background = isFinite(depth)
          ? `color-mix(in srgb, var(--dot) ${Math.round(6 + 44 * depth)}%, var(--paper))` : "";
      }
    };
    select.addEventListener("change", color);
    color();
  }

  const TITLE = document.title;
  function route() {
    const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const always = !found || found.closest("[data-always]") || !found.closest(".board");
    const board = always ? all(".board").find(one => !one.hidden) || all(".board")[0] : found.closest(".board");
    const part = always ? null : found.closest("[data-part]");
    for (const one of all(".board")) one.hidden = one !== board;
    for (const one of all("[data-always]")) one.hidden = part !== null; // what is about the whole board
    board.querySelector("[data-home]").hidden = part !== null;
    for (const view of all("[data-part].shown")) view.classList.remove("shown");
    part?.classList.add("shown");
    for (const link of all("[data-rules]"))
      link.toggleAttribute("aria-current", link.dataset.rules === board.dataset.board);
    const title = part?.querySelector("h2").textContent;
    document.title = title ? `${title} · ${TITLE}` : TITLE;
    if (part || found) (part || found).scrollIntoView();
  }
  addEventListener("hashchange", route);
  for (const one of all(".board")) one.hidden = one.dataset.board !== "0";
  route();
})();
