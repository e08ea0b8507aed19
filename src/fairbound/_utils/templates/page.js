"use strict";
const NARROW = 640, PRINTED = 700; // pixels: an A4 page has about 700 between its margins
const AHEAD = "600px"; // figures with class waits are drawn before they are scrolled into view
const SETTINGS = {displaylogo: false, typesetMath: false, modeBarButtons: [["toImage"]]};
const figures = [...document.querySelectorAll(".figure")];

// Colors are CSS variables of this page, with values for light, dark and print.
function colored(styles) {
  return (key, value) => {
    const name = /color$/.test(key) && /^var\((--\w+)\)$/.exec(value);
    return name ? styles.getPropertyValue(name[1]).trim() : value;
  };
}

function draw(figure, printed = 0) {
  const available = printed || figure.clientWidth;
  if (!available || !figure.offsetParent || figure.closest("details:not([open])")) return; // drawn when it is shown
  figure.drawn = available;
  // A script of the page may have set a function that makes the figure for this width
  const text = figure.spec ? JSON.stringify(figure.spec(available)) : figure.querySelector("script").textContent;
  const spec = JSON.parse(text, colored(getComputedStyle(figure)));
  const width = printed || Math.max(available, spec.minWidth); // what is wider than its box scrolls there
  const layout = width < NARROW && spec.narrow || spec.wide;
  Plotly.react(figure.querySelector("div"), spec.data, Object.assign(layout, {width}), SETTINGS);
}

const sizes = new ResizeObserver(seen => {
  const changed = seen.map(entry => entry.target).filter(figure => figure.clientWidth !== figure.drawn);
  requestAnimationFrame(() => changed.forEach(figure => draw(figure))); // not at once: drawing changes sizes
});
function show(figure) { draw(figure); sizes.observe(figure); }

const waiting = new IntersectionObserver(seen => {
  for (const entry of seen) if (entry.isIntersecting) { waiting.unobserve(entry.target); show(entry.target); }
}, {rootMargin: AHEAD});
for (const figure of figures) if (figure.classList.contains("waits")) waiting.observe(figure); else show(figure);

const redraw = () => figures.filter(figure => figure.drawn).forEach(figure => draw(figure));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const part of folded) part.open = true;
  for (const figure of figures) draw(figure, PRINTED);
});
addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
  redraw();
});

function sort(header) {
  const descending = header.getAttribute("aria-sort") === "ascending", at = header.cellIndex;
  const body = header.closest("table").tBodies[0];
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const value = row => row.cells[at].dataset.value;
  const known = [...body.rows].filter(row => value(row) !== undefined);
  const numbers = known.every(row => isFinite(value(row)));
  known.sort((a, b) => numbers ? value(a) - value(b) : value(a).localeCompare(value(b)));
  const unknown = [...body.rows].filter(row => value(row) === undefined); // last in both orders
  body.append(...(descending ? known.reverse() : known), ...unknown);
}
for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sort(button.closest("th")));
