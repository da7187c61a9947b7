"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const unique = (values) => [...new Set(values)];
  const make = (name, attributes = {}, text = "") => {
    const svg = ["svg", "path", "text", "line", "circle", "g"].includes(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  };

  // Light and dark
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  root.classList.toggle("dark", dark.matches);
  byId("theme").onclick = () => { root.classList.toggle("dark"); draw(); };

  // What is shown
  const everything = [...data.curves, ...Object.values(data.charts).flat().flatMap((chart) => chart.curves)];
  const drawn = [...everything, ...data.others];
  const methods = Object.keys(data.colours).filter((name) => drawn.some((curve) => curve.method === name));
  const tasks = unique(drawn.map((curve) => curve.task));
  const seeds = unique(everything.map((curve) => curve.seed)).sort((a, b) => a - b);
  const shown = { methods: new Set(methods), tasks: new Set(tasks), runs: new Set(seeds) };
  const colour = (method) => {
    const found = data.colours[method];
    return found === "#000000" && root.classList.contains("dark") ? "#e6e9ed" : found;
  };
  const toggles = (id, names, swatch) => names.forEach((name) => {
    const label = make("label"), box = make("input", { type: "checkbox", "data-name": name });
    box.checked = true;
    box.onchange = () => { box.checked ? shown[id].add(name) : shown[id].delete(name); draw(); };
    label.append(box);
    if (swatch) { const square = make("span", { class: "swatch" }); square.style.background = colour(name); label.append(square); }
    label.append(` ${name}`);
    byId(id).append(label);
  });
  byId("curves").hidden = !methods.length;
  toggles("methods", methods, true);
  toggles("tasks", tasks, false);
  toggles("runs", seeds, false);
  byId("seeds").onchange = () => draw();
  byId("axis").onchange = () => draw();

  // Curves
  const points = (xs, ys) => xs.map((x, i) => [x, ys[i]]).filter(([x, y]) => x !== null && y !== null);
  const at = (line, x) => {
    let i = line.findIndex((point) => point[0] >= x);
    if (i <= 0) return line[i < 0 ? line.length - 1 : 0][1];
    const [x0, y0] = line[i - 1], [x1, y1] = line[i];
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : y1;
  };
  const mean = (lines) => {
    const first = Math.max(...lines.map((line) => line[0][0]));
    const last = Math.min(...lines.map((line) => line[line.length - 1][0]));
    const longest = lines.reduce((a, b) => (b.length > a.length ? b : a));
    return longest.map((point) => point[0]).filter((x) => x >= first && x <= last).map((x) => {
      const values = lines.map((line) => at(line, x));
      const middle = values.reduce((a, b) => a + b, 0) / values.length;
      const spread = Math.sqrt(values.reduce((a, b) => a + (b - middle) ** 2, 0) / values.length);
      return [x, middle, middle - spread, middle + spread];
    });
  };
  const step = (range) => {
    const power = 10 ** Math.floor(Math.log10(range / 4 || 1));
    return [1, 2, 5, 10].map((k) => k * power).find((size) => range / size <= 5) || 10 * power;
  };
  const short = (x) => {
    const size = Math.abs(x);
    if (size >= 1e6) return `${+(x / 1e6).toPrecision(3)}M`;
    return size >= 1e3 ? `${+(x / 1e3).toPrecision(3)}k` : `${+x.toPrecision(3)}`;
  };
  const time = (x) => (x >= 7200 ? `${+(x / 3600).toPrecision(3)} h` : x >= 120 ? `${+(x / 60).toPrecision(3)} min` : `${+x.toPrecision(3)} s`);

  const W = 360, H = 230, L = 44, R = 10, T = 8, B = 34;
  // A panel: `curves` with their `line`s of points, `others` with means and bounds alone, what is on its axes, and how values are written.
  const chart = ({ title, task, curves, others = [], x: across, y: up, name = short, value = short }) => {
    const everySeed = byId("seeds").checked;
    const groups = methods.filter((method) => shown.methods.has(method)).map((method) => {
      const other = others.find((curve) => curve.method === method);
      if (other) return { method, other: true, lines: [other.mean, other.low, other.high].map((ys) => points(other.steps, ys)), mean: other.steps.map((x, i) => [x, other.mean[i], other.low[i], other.high[i]]) };
      const lines = curves.filter((curve) => curve.method === method && shown.runs.has(curve.seed))
        .map((curve) => curve.line).filter((line) => line.length);
      return { method, lines, mean: lines.length ? mean(lines) : [] };
    }).filter((group) => group.lines.length);
    const figure = make("figure", { class: "panel chart", "data-task": task });
    const caption = make("figcaption", {}, title);
    caption.append(make("span", { class: "notes" }, ` ${up}`));
    figure.append(caption);
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${up}, ${title}` });
    figure.append(svg);
    if (!groups.length) {
      svg.append(make("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing to show"));
      return figure;
    }
    const all = groups.flatMap((group) => group.lines.flat());
    const high = Math.max(...all.map((p) => p[1]), 0), low = Math.min(...all.map((p) => p[1]), 0);
    const end = Math.max(...all.map((p) => p[0])) || 1, range = high - low || 1;
    const X = (x) => L + (W - L - R) * x / end, Y = (y) => T + (H - T - B) * (high - y) / range;
    const size = step(range);
    for (let y = Math.ceil(low / size) * size; y <= high + 1e-9; y += size) {
      svg.append(make("line", { class: "grid", x1: L, x2: W - R, y1: Y(y), y2: Y(y) }));
      svg.append(make("text", { x: L - 5, y: Y(y) + 4, "text-anchor": "end" }, short(y)));
    }
    const wide = step(end);
    for (let x = 0; x <= end + 1e-9; x += wide) svg.append(make("text", { x: X(x), y: H - B + 16, "text-anchor": "middle" }, name(x)));
    svg.append(make("text", { x: W - R, y: H - 4, "text-anchor": "end" }, across));
    const path = (line) => line.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("");
    for (const { method, other, lines, mean: middle } of groups) {
      const kind = other ? " other" : "";
      if ((other || lines.length > 1) && middle.length) {
        const up = middle.map(([x, , , most]) => [x, most]), down = middle.map(([x, , least]) => [x, least]).reverse();
        svg.append(make("path", { class: `band${kind}`, fill: colour(method), d: `${path(up)}L${path(down).slice(1)}Z` }));
      }
      if (everySeed && !other) for (const line of lines) svg.append(make("path", { class: "seed", stroke: colour(method), d: path(line) }));
      svg.append(make("path", { class: `mean${kind}`, stroke: colour(method), d: path(middle) }));
      const [x, y] = middle[middle.length - 1] || lines[0][lines[0].length - 1];
      svg.append(make("circle", { cx: X(x), cy: Y(y), r: 2.5, fill: colour(method) }));
    }
    const tip = byId("tip");
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * end;
      const lines = groups.filter((group) => group.mean.length).map((group) => {
        const [px, py, low, most] = group.mean.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
        if (group.other) return `${group.method}: ${value(py)} (${value(low)} to ${value(most)}) at ${name(px)}`;
        if (group.lines.length === 1) return `${group.method}: ${value(py)} at ${name(px)} (1 seed)`;
        return `${group.method}: ${value(py)} \u00b1 ${value(most - py)} at ${name(px)} (${group.lines.length} seeds)`;
      });
      tip.textContent = lines.join("\n");
      tip.hidden = !lines.length;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${event.clientY + 14}px`;
    };
    svg.onpointerleave = () => { tip.hidden = true; };
    return figure;
  };
  const draw = () => {
    const axis = byId("axis").value, steps = axis === "steps", learned = unique([...data.curves, ...data.others].map((curve) => curve.task));
    const look = { x: steps ? "env steps" : "wall-clock", y: "return", name: steps ? short : time, value: (y) => y.toFixed(1) };
    const charts = learned.filter((task) => shown.tasks.has(task)).map((task) => {
      const curves = data.curves.filter((curve) => curve.task === task);
      const others = steps ? data.others.filter((curve) => curve.task === task) : [];
      return chart({ title: task, task, others, curves: curves.map((curve) => ({ ...curve, line: points(curve[axis], curve.returns) })), ...look });
    });
    byId("charts").replaceChildren(...charts);
    if (!charts.length) byId("charts").append(make("p", {}, learned.length ? "No task is chosen." : "There are no learning curves yet."));
    for (const [id, measured] of Object.entries(data.charts)) {
      byId(`${id}-charts`).replaceChildren(...measured.filter((one) => shown.tasks.has(one.task)).map((one) =>
        chart({ ...one, curves: one.curves.map((curve) => ({ ...curve, line: points(curve.xs, curve.ys) })) })));
    }
    document.querySelectorAll("#methods .swatch").forEach((square, i) => { square.style.background = colour(methods[i]); });
  };
  draw();

  // Tables
  const number = (text) => { const found = text.replace(/,/g, "").match(/[-+]?\d+(\.\d+)?/); return found ? +found[0] : -Infinity; };
  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    table.querySelectorAll("thead button").forEach((button, column) => {
      let down = column > 0;
      button.onclick = () => {
        const rows = [...body.rows], totals = rows.filter((row) => row.classList.contains("total"));
        const plain = rows.filter((row) => !row.classList.contains("total"));
        const text = (row) => row.cells[column].textContent;
        plain.sort((a, b) => (column ? number(text(a)) - number(text(b)) : text(a).localeCompare(text(b))) * (down ? -1 : 1));
        down = !down;
        body.replaceChildren(...plain, ...totals);
      };
    });
  });

  // Films
  document.querySelectorAll(".film").forEach((film) => {
    const image = film.querySelector("img"), video = film.querySelector("video"), button = film.querySelector(".play"), still = image.src;
    if (!button) return;
    button.onclick = () => {
      const playing = button.textContent === "stop";
      button.textContent = playing ? "play" : "stop";
      if (!video) { image.src = playing ? still : image.dataset.film; return; }
      image.hidden = !playing; video.hidden = playing;
      if (playing) video.pause(); else video.play();
    };
  });

  // Options
  const names = Object.keys(data.configs), sides = [byId("left"), byId("right")];
  sides.forEach((side, i) => {
    names.forEach((name) => side.append(make("option", { value: name }, name)));
    side.selectedIndex = Math.min(i, names.length - 1);
    side.onchange = () => diff();
  });
  const diff = () => {
    const [one, two] = sides.map((side) => data.configs[side.value] || {});
    const body = byId("diff").tBodies[0];
    const keys = unique([...Object.keys(one), ...Object.keys(two)]).filter((key) => JSON.stringify(one[key]) !== JSON.stringify(two[key]));
    body.replaceChildren(...keys.map((key) => {
      const row = make("tr");
      row.append(make("td", {}, key), make("td", {}, JSON.stringify(one[key]) ?? "-"), make("td", {}, JSON.stringify(two[key]) ?? "-"));
      return row;
    }));
    if (!keys.length) { const row = make("tr"); row.append(make("td", { colspan: 3 }, names.length ? "They are the same." : "There are no runs yet.")); body.append(row); }
  };
  diff();
})();
