"use strict";
// Figures from the board's numbers, for the problem or target that a reader chose; page.js draws them. Parts of the page
// (a method, a problem) are shown alone when the address names them; without JavaScript all are visible.
(() => {
  const BOARDS = JSON.parse(document.getElementById("data").textContent);
  const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "var(--ink)"];
  const DASHES = ["solid", "dash", "dot"], SMALL = 640;
  const LOSS = [0.3, 0.1, 0.03, 0.01], VIOLATION = [1, 0.3, 0.1, 0.03];
  // From loose to tight: by the sum of both places, then by the loss
  const TARGETS = [...Array(16).keys()].sort((a, b) => (a >> 2) + a % 4 - (b >> 2) - b % 4 || a - b);
  const all = selector => [...document.querySelectorAll(selector)];
  const control = (name, board, at) => document.querySelector(
    `[data-control=${name}][data-board="${board}"]${at === undefined ? "" : `[data-at="${at}"]`}`);
  const chosen = (name, board, at) => control(name, board, at)?.value;
  const lineOf = (m, width) => ({color: COLORS[m % 7], dash: DASHES[Math.floor(m / 7) % 3], width});
  const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

  const axis = (more = {}) => Object.assign({gridcolor: "var(--line)", zeroline: false, fixedrange: true, automargin: true,
    linecolor: "var(--faint)", tickcolor: "var(--faint)"}, more);
  const layout = (height, more) => Object.assign({
    height, margin: {l: 60, r: 16, t: 34, b: 48}, hovermode: "closest", dragmode: false, showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: "system-ui, sans-serif", size: 12, color: "var(--ink)"},
    hoverlabel: {bgcolor: "var(--paper)", bordercolor: "var(--faint)", font: {color: "var(--ink)"}},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: "var(--faint)", activecolor: "var(--ink)"}, uirevision: "kept"}, more);
  const heading = (text, panel) => ({text: `<b>${text}</b>`, xref: `x${panel || ""} domain`, yref: `y${panel || ""} domain`,
    x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: 6, showarrow: false, font: {size: 13}});
  const note = text => ({text, xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false, font: {size: 14}});
  const whole = spec => ({data: spec.data, wide: spec.layout, minWidth: 0});

  // Two panels side by side, or below each other on a small screen
  function pair(narrow) {
    return narrow ? {x: [[0, 1], [0, 1]], y: [[0.57, 1], [0, 0.43]]} : {x: [[0, 0.46], [0.54, 1]], y: [[0, 1], [0, 1]]};
  }

  // Loss against violation at the end ---------------------------------------------------------------------------------
  function ends(board, width) {
    const b = BOARDS[board], p = +chosen("problem", board), card = b.cards[p], narrow = width < SMALL;
    const panels = [0, 1].filter(part => card.ends.some(end => end[part]));
    if (!panels.length) return whole({data: [], layout: layout(200, {annotations: [note("Nothing was measured at the end.")]})});
    const place = panels.length > 1 ? pair(narrow) : {x: [[0, 1]], y: [[0, 1]]};
    const height = narrow && panels.length > 1 ? 660 : 420;
    const data = [], annotations = [], shapes = [], axes = {};
    // Methods far away stand at the edge, so that those that matter can be told apart
    const cap = (values, least) => {
      const sorted = [...values].sort((x, y) => x - y);
      return Math.min(sorted.at(-1), Math.max(least, sorted[Math.floor(0.75 * (sorted.length - 1))] * 1.5));
    };
    const shown = panels.flatMap(part => card.ends.map(end => end[part]).filter(Boolean)); // the same axes in both panels
    const low = Math.min(...shown.map(end => end[0] - end[1]));
    const right = Math.max(cap(shown.map(end => end[2] + end[3]), 0.1 * card.scale), 1e-9) * 1.1, left = -0.04 * right;
    const span = Math.max(cap(shown.map(end => end[0] + end[1] - low), 0.03 * Math.abs(card.start - card.loss)), 1e-9);
    const top = low + 1.1 * span, bottom = low - 0.06 * span;
    panels.forEach((part, at) => {
      const n = at ? at + 1 : "", [x0, x1] = place.x[at], [y0, y1] = place.y[at];
      const wide = (width - 90) * (x1 - x0), high = (height - 90) * (y1 - y0);
      axes[`xaxis${n}`] = axis({domain: [x0, x1], anchor: `y${n}`, range: [left, right], showline: true, ticks: "outside",
        nticks: 6, title: {text: `largest excess over the bound${card.bound == null ? "" : ` of ${card.bound}`}`, standoff: 6}});
      axes[`yaxis${n}`] = axis({domain: [y0, y1], anchor: `x${n}`, range: [bottom, top], nticks: 6,
        title: {text: "loss", standoff: 6}});
      annotations.push(heading(part ? "Held-out data" : "Training data", n));
      const bound = {type: "line", xref: `x${n}`, yref: `y${n} domain`, x0: 0, x1: 0, y0: 0, y1: 1};
      shapes.push(Object.assign(bound, {line: {color: "var(--ink)", width: 1, dash: "dash"}}));
      annotations.push({text: "bound met", xref: `x${n}`, yref: `y${n} domain`,
        x: 0, y: 1, xanchor: "left", yanchor: "top", xshift: 3, showarrow: false, font: {size: 11, color: "var(--soft)"}});
      const words = [[0, 0, 70, 18]], marks = [], named = [...card.best.slice(0, 4), ...[card.safest].filter(m => m != null)];
      const order = [...new Set([...named, ...card.best, ...card.order])];
      const points = order.filter(m => card.ends[m][part]).map(m => {
        const [loss, lossSpread, violation, violationSpread] = card.ends[m][part];
        const x = Math.min(violation, right * 0.985), y = Math.min(loss, top - 0.015 * (top - bottom));
        const px = (x - left) / (right - left) * wide, py = (top - y) / (top - bottom) * high;
        return {m, x, y, px, py, loss, lossSpread, violation, violationSpread, outside: x < violation || y < loss};
      });
      for (const one of points) marks.push([one.px - 6, one.py - 6, one.px + 6, one.py + 6]);
      // A place for a name, in pixels from its point: free of others, within the panel
      const free = (one, boxes, taken) => boxes.map(([x, y, w, ...rest]) =>
        [[one.px + x - w / 2, one.py + y - 7, one.px + x + w / 2, one.py + y + 7], x, y, ...rest]).find(([[a, t, c, d]]) =>
        a > 0 && c < wide && t > 0 && d < high && !taken.some(o => a < o[2] && c > o[0] && t < o[3] && d > o[1]));
      const traces = points.map(one => {
        const best = card.best.includes(one.m), safest = one.m === card.safest, name = escaped(b.methods[one.m]);
        const color = best ? "var(--best)" : safest ? "var(--ink)" : "var(--other)", strong = best || safest;
        const half = name.length * (strong ? 3.7 : 3.3) + 2;
        let found;
        if (named.includes(one.m)) { // with a line to the point, farther away where it is crowded
          const around = [30, 50, 75, 105].flatMap(r => [-0.5, 0.5, -2.6, 2.6, -1.2, 1.2, -2, 2].map(angle =>
            [Math.cos(angle) * (r + half), Math.sin(angle) * r, 2 * half]));
          const spot = free(one, around, [...words, ...marks]) || free(one, around, words);
          if (spot) {
            words.push(spot[0]);
            annotations.push({text: `<b>${name}</b>`, xref: `x${n}`, yref: `y${n}`, x: one.x, y: one.y, ax: spot[1], ay: spot[2],
              showarrow: true, arrowhead: 0, arrowwidth: 1, standoff: 5, arrowcolor: color, bgcolor: "var(--paper)",
              borderpad: 1, font: {size: 13, color}});
          }
        } else {
          const beside = [["middle right", 9 + half, 0], ["top right", 5 + half, -13], ["bottom right", 5 + half, 13],
            ["middle left", -9 - half, 0], ["top left", -5 - half, -13], ["bottom left", -5 - half, 13]];
          found = free(one, beside.map(([where, x, y]) => [x, y, 2 * half, where]), [...words, ...marks]);
          if (found) words.push(found[0]);
        }
        const bar = strong ? color : "var(--faint)";
        const bars = one.outside ? {} : {
          error_x: {type: "data", array: [one.violationSpread], arrayminus: [Math.min(one.violationSpread, one.violation)],
            symmetric: false, color: bar, thickness: 1, width: 0},
          error_y: {type: "data", array: [one.lossSpread], color: bar, thickness: 1, width: 0}};
        return Object.assign({x: [one.x], y: [one.y], xaxis: `x${n}`, yaxis: `y${n}`, mode: found ? "markers+text" : "markers",
          text: [name], textposition: found?.[3], name,
          textfont: {color: best ? "var(--best)" : "var(--soft)", size: 12},
          marker: {size: strong ? 11 : 8, color: best ? color : "var(--paper)", symbol: one.outside ? "triangle-up" : "circle",
            line: {color, width: safest && !best ? 3 : 1.5}},
          hovertemplate: `<b>${name}</b><br>loss ${one.loss} ± ${one.lossSpread}<br>` +
            `violation ${one.violation} ± ${one.violationSpread}${one.outside ? "<br>outside of the axes" : ""}<extra></extra>`},
        bars);
      });
      data.push(...traces.reverse()); // the best on top
    });
    return whole({data, layout: layout(height, Object.assign(axes, {annotations, shapes}))});
  }

  // Profiles ----------------------------------------------------------------------------------------------------------
  const GRID = [...Array(81).keys()].map(i => 100 ** (i / 80));

  // The share of chosen targets that one run has reached, at each point of the grid, by problem
  function shares(track, m, targets) {
    return track.hits[m].map(runs => (runs || []).map(run => {
      const steps = targets.filter(t => t < run.length).map(t => run[t]).filter(e => e > 0).sort((x, y) => x - y);
      const count = targets.filter(t => t < run.length).length || 1;
      let at = 0;
      return GRID.map(e => { while (at < steps.length && steps[at] <= e) at++; return at / count; });
    }));
  }
  const mean = lines => GRID.map((_, k) => lines.reduce((sum, line) => sum + line[k], 0) / lines.length);
  const none = GRID.map(() => 0);

  function band(problems, draws = 200) {
    let state = 18; // the same draws for every method
    const random = n => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 2147483648 * n); };
    const found = [];
    for (let d = 0; d < draws; d++) {
      const lines = problems.map(() => {
        const runs = problems[random(problems.length)];
        return runs.length ? mean(runs.map(() => runs[random(runs.length)])) : none;
      });
      found.push(mean(lines));
    }
    const ends = GRID.map((_, k) => found.map(line => line[k]).sort((x, y) => x - y));
    return [0.025, 0.975].map(q => ends.map(sorted => sorted[Math.round(q * (draws - 1))]));
  }

  // Of known answers there are four targets, by distance
  function target(board, name) {
    const place = +chosen(name, board), known = chosen("track", board) === "known";
    if (!place) return {targets: [...Array(16).keys()], words: "all targets"};
    const at = TARGETS[place - 1];
    if (known) return {targets: [at >> 2], words: `distance within ${LOSS[at >> 2]}`};
    return {targets: [at], words: `loss within ${LOSS[at >> 2]}, violation within ${VIOLATION[at % 4]}`};
  }

  function profile(board, width) {
    const b = BOARDS[board], track = b.tracks[chosen("track", board)], narrow = width < SMALL;
    if (!track) return whole({data: [], layout: layout(200, {annotations: [note("This track scores the ends of runs.")]})});
    const {targets} = target(board, "target"), data = [];
    track.order.forEach((m, place) => {
      const problems = shares(track, m, targets), name = escaped(b.methods[m]), color = COLORS[m % 7];
      const y = mean(problems.map(runs => runs.length ? mean(runs) : none));
      if (place < 4) {
        const [low, high] = band(problems);
        data.push({x: [...GRID, ...[...GRID].reverse()], y: [...high, ...low.reverse()], mode: "none", fill: "toself",
          fillcolor: color, opacity: 0.16, hoverinfo: "skip", showlegend: false, legendgroup: name, name});
      }
      data.push({x: GRID, y, mode: "lines", name, legendgroup: name, line: lineOf(m, place < 4 ? 2.6 : 1.3),
        hovertemplate: `<b>${name}</b><br>%{y:.0%} by %{x:.3g} epochs<extra></extra>`});
    });
    const legend = narrow ? {orientation: "h", x: 0, y: -0.2, font: {size: 11}}
      : {x: 1.01, y: 1, font: {size: 12}, tracegroupgap: 0};
    return whole({data, layout: layout(narrow ? 460 + 13 * data.length : 460, {
      showlegend: true, legend, margin: {l: 60, r: 16, t: 14, b: 48},
      xaxis: axis({type: "log", range: [0, 2], tickvals: [1, 2, 5, 10, 20, 50, 100], showline: true, ticks: "outside",
        title: {text: "epochs", standoff: 6}}),
      yaxis: axis({range: [0, 1.02], tickformat: ".0%", title: {text: "share reached", standoff: 6}})})});
  }

  // Curves ------------------------------------------------------------------------------------------------------------
  function curves(board, p, width, bold, gray) {
    const b = BOARDS[board], card = b.cards[p], narrow = width < SMALL, place = pair(narrow), data = [];
    const floor = 0.01 * card.scale, medians = b.curves.flatMap(of => of[p]?.[2] || []).filter(v => v !== null);
    const least = Math.min(card.loss, ...medians);
    const most = card.start + 0.15 * Math.abs(card.start - card.loss), pad = 0.05 * (most - least);
    const order = card.order.length ? card.order : b.methods.map((_, m) => m);
    const drawn = gray ? [...order.filter(m => !bold.includes(m)), ...bold] : order;
    for (const m of drawn) {
      const curve = b.curves[m][p], faint = gray && !bold.includes(m), name = escaped(b.methods[m]);
      if (!curve) continue;
      const [x, ...six] = curve;
      const raised = six.slice(3).map(line => line.map(v => v === null ? v : Math.max(v, floor))); // 0 has no logarithm
      [six.slice(0, 3), raised].forEach(([low, y, high], at) => {
        const axes = {xaxis: `x${at ? 2 : ""}`, yaxis: `y${at ? 2 : ""}`, legendgroup: name, name};
        const known = x.map((_, k) => k).filter(k => low[k] !== null && high[k] !== null), back = [...known].reverse();
        if (bold.includes(m)) data.push(Object.assign({x: [...known.map(k => x[k]), ...back.map(k => x[k])],
          y: [...known.map(k => high[k]), ...back.map(k => low[k])], mode: "none", fill: "toself",
          fillcolor: gray ? "var(--best)" : COLORS[m % 7], opacity: 0.18, hoverinfo: "skip", showlegend: false}, axes));
        const line = faint ? {color: "var(--faint)", width: 1} : gray ? {color: "var(--best)", width: 2.6}
          : lineOf(m, bold.includes(m) ? 2.6 : 1.3);
        data.push(Object.assign({x, y, mode: "lines", line, showlegend: !gray && !at,
          hovertemplate: `<b>${name}</b><br>%{y:.4g} at %{x:.3g} epochs<extra></extra>`}, axes));
      });
    }
    const level = (panel, y) => ({type: "line", xref: `x${panel} domain`, yref: `y${panel}`, x0: 0, x1: 1, y0: y, y1: y,
      line: {color: "var(--ink)", width: 1, dash: "dash"}});
    const epochs = {type: "log", range: [-0.5, Math.log10(card.last)], tickvals: [1, 2, 5, 10, 20, 50, 100], showline: true,
      ticks: "outside", title: {text: "epochs", standoff: 6}};
    const powers = [floor, 0.1 * card.scale, card.scale, 10 * card.scale, 100 * card.scale];
    const height = (narrow ? 620 : 380) + (gray ? 0 : narrow ? 13 * b.methods.length : 80);
    return whole({data, layout: layout(height, {
      showlegend: !gray, legend: {orientation: "h", x: 0, y: narrow ? -0.12 : -0.2, font: {size: 11}},
      annotations: [heading("Loss", ""), heading("Largest violation", "2")],
      shapes: [level("", card.loss), level("2", card.scale)],
      xaxis: axis(Object.assign({domain: place.x[0], anchor: "y"}, epochs, narrow ? {title: {text: ""}} : {})),
      xaxis2: axis(Object.assign({domain: place.x[1], anchor: "y2"}, epochs)),
      yaxis: axis({domain: place.y[0], anchor: "x", range: [least - pad, most + pad]}),
      yaxis2: axis({domain: place.y[1], anchor: "x2", type: "log", tickvals: powers,
        ticktext: powers.map((v, i) => (i ? "" : "≤ ") + +v.toPrecision(2))})})});
  }

  const SPECS = {
    ends: (board, at, width) => ends(board, width),
    profile: (board, at, width) => profile(board, width),
    problem: (board, at, width) => curves(board, at, width, BOARDS[board].cards[at].order.slice(0, 3), false),
    method: (board, at, width) => curves(board, +chosen("curve", board, at), width, [at], true),
  };
  for (const figure of all("[data-figure]")) {
    const {figure: kind, board, at} = figure.dataset;
    figure.spec = width => SPECS[kind](+board, +at, width);
  }
  const again = (kind, board, at) => all(`[data-figure=${kind}][data-board="${board}"]`)
    .filter(figure => at === undefined || figure.dataset.at === at).forEach(figure => { if (figure.drawn) draw(figure); });

  // The map of problems and methods -----------------------------------------------------------------------------------
  function median(runs, t) {
    const sorted = runs.map(run => run[Math.min(t, run.length - 1)] || Infinity).sort((x, y) => x - y), n = sorted.length;
    return (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2;
  }
  function heat(board) {
    const b = BOARDS[board], t = +chosen("heat", board);
    for (const cell of all(`[data-heat="${board}"] td`)) {
      const p = +cell.dataset.p, card = b.cards[p], track = b.tracks[card.track];
      const runs = track.hits[+cell.dataset.m][track.problems.indexOf(p)];
      const e = runs ? median(runs, card.track === "known" ? t >> 2 : t) : Infinity;
      cell.textContent = isFinite(e) ? e < 9.95 ? e.toFixed(1) : e.toFixed(0) : "—";
      const depth = isFinite(e) ? Math.min(1, Math.max(0, 1 - Math.log(Math.max(e, 1)) / Math.log(card.last))) : 0;
      cell.style.background = isFinite(e) ? `color-mix(in srgb, var(--dot) ${Math.round(6 + 44 * depth)}%, var(--paper))` : "";
    }
  }

  // Controls ----------------------------------------------------------------------------------------------------------
  function track(board) {
    const name = chosen("track", board), slider = control("target", board);
    for (const part of all(`[data-track][data-board="${board}"]`)) part.hidden = part.dataset.track !== name;
    const profile = document.querySelector(`[data-profile="${board}"]`);
    if (profile) profile.closest("section").hidden = !BOARDS[board].tracks[name];
    if (slider) words(board, slider);
    again("profile", board);
  }
  function words(board, slider) {
    const text = target(board, "target").words;
    document.querySelector(`[data-target-words="${board}"]`).textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  const CHANGES = {
    problem: board => {
      const parts = BOARDS[board].cards[+chosen("problem", board)].finding;
      document.querySelector(`[data-finding="${board}"]`).replaceChildren(...parts.map(text =>
        Object.assign(document.createElement("p"), {textContent: text})));
      again("ends", board);
    },
    track, heat,
    target: (board, input) => { words(board, input); again("profile", board); },
    curve: (board, input) => again("method", board, input.dataset.at),
  };
  for (const input of all("[data-control]")) {
    const {control: name, board} = input.dataset;
    input.addEventListener(name === "target" ? "input" : "change", () => CHANGES[name](+board, input));
  }
  BOARDS.forEach((_, board) => { if (control("track", board)) track(board); if (control("heat", board)) heat(board); });

  // Parts -------------------------------------------------------------------------------------------------------------
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
  const TITLE = document.title;
  addEventListener("hashchange", route);
  for (const one of all(".board")) one.hidden = one.dataset.board !== "0";
  route();
})();
