"use strict";
let folded = []; // parts that are opened for print
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => { for (const part of folded) part.open = false; });

function sort(header) {
  const descending = header.getAttribute("aria-sort") === "ascending", at = header.cellIndex;
  const body = header.closest("table").tBodies[0];
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const value = row => row.cells[at].dataset.value ?? row.cells[at].firstChild?.textContent ?? "";
  const known = [...body.rows].filter(row => value(row) !== "");
  const numbers = known.every(row => isFinite(value(row)));
  known.sort((a, b) => numbers ? value(a) - value(b) : value(a).localeCompare(value(b)));
  const unknown = [...body.rows].filter(row => value(row) === ""); // last in both orders
  body.append(...(descending ? known.reverse() : known), ...unknown);
}
for (const select of document.querySelectorAll("[data-shows]")) {
  const show = () => {
    for (const part of document.querySelectorAll(`[data-shown-by="${select.dataset.shows}"]`))
      part.hidden = part.dataset.value !== select.value;
  };
  select.addEventListener("change", show);
  show();
}
for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sort(button.closest("th")));
