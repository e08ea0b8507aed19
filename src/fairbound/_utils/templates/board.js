"use strict";
// A reader's choices show rendered parts; the address shows a method or a problem alone. Without JavaScript all is visible.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  for (const select of all("[data-shows]"))
    select.addEventListener("change", () => {
      for (const part of all(`[data-shown-by="${select.dataset.shows}"]`))
        part.classList.toggle("chosen", part.dataset.value === select.value);
    });

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
