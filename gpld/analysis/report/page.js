"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const unique = (values) => [...new Set(values)];
  const make = (name, attributes = {}, text = "") => {
    const svg = ["svg", "path", "text", "line", "circle", "rect", "g"].includes(name);
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
  const learning = [...data.curves, ...data.others], drawn = [...everything, ...data.others];
  const methods = Object.keys(data.colours).filter((name) => drawn.some((curve) => curve.method === name));
  const tasks = unique(drawn.map((curve) => curve.task));
  const seeds = unique(everything.map((curve) => curve.seed)).sort((a, b) => a - b);
  const shown = { methods: new Set(methods), tasks: new Set(tasks), runs: new Set(seeds) };
  const colour = (method) => {
    const found = data.colours[method];
    return found === "#000000" && root.classList.contains("dark") ? "#e6e9ed" : found;
  };
  const dot = (name) => { const mark = make("span", { class: "swatch", "data-method": name }); mark.style.background = colour(name); return mark; };
  const toggles = (id, names, swatch) => names.forEach((name) => {
    const label = make("label"), box = make("input", { type: "checkbox", "data-name": name });
    box.checked = true;
    box.onchange = () => { box.checked ? shown[id].add(name) : shown[id].delete(name); draw(); };
    label.append(box);
    label.append(...(swatch ? [dot(name)] : []), name);
    byId(id).append(label);
    byId(id).hidden = names.length < 2 && !swatch;
  });
  byId("curves").hidden = !learning.length;
  toggles("methods", methods, true);
  toggles("tasks", tasks, false);
  toggles("runs", seeds, false);
  byId("seeds").parentNode.hidden = seeds.length < 2;
  const wide = window.matchMedia("(min-width: 800px)");
  wide.onchange = () => draw();
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

  // Files of figures and tables
  const save = (name, blob) => {
    const link = make("a", { download: name, href: URL.createObjectURL(blob) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const sheet = (rows) => new Blob([rows.map((row) => row.map((cell) => (/[",\n]/.test(cell) ? `"${String(cell).replace(/"/g, '""')}"` : cell)).join(",")).join("\n") + "\n"], { type: "text/csv" });
  const tools = (actions) => {
    const box = make("span", { class: "tools" });
    for (const [name, action] of Object.entries(actions)) {
      const button = make("button", { title: `save as ${name}` }, name);
      button.onclick = (event) => { event.preventDefault(); action(); };  // which would open or close a table
      box.append(button);
    }
    return box;
  };
  // A chart with its title and legend, and with styles of its own.
  const drawing = (svg, title, groups) => {
    const W = svg.viewBox.baseVal.width;
    const copy = svg.cloneNode(true), parts = [...svg.querySelectorAll("*")];
    [...copy.querySelectorAll("*")].forEach((node, i) => {
      const style = getComputedStyle(parts[i]);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"]) node.setAttribute(name, style.getPropertyValue(name));
    });
    const ground = getComputedStyle(svg.closest(".panel")).backgroundColor, ink = getComputedStyle(document.body).color, head = 24 + 16 * groups.length;
    const words = { "font-family": "system-ui, sans-serif", fill: ink };
    copy.prepend(make("rect", { x: 0, y: -head, width: W, height: H + head, fill: ground }));
    copy.append(make("text", { ...words, x: 10, y: 18 - head, "font-size": 13, "font-weight": 600 }, title));
    groups.forEach(({ method }, i) => copy.append(make("circle", { cx: 14, cy: 31 - head + 16 * i, r: 4, fill: colour(method) }), make("text", { ...words, x: 23, y: 35 - head + 16 * i, "font-size": 11 }, method)));
    for (const [key, value] of Object.entries({ viewBox: `0 ${-head} ${W} ${H + head}`, width: 2 * W, height: 2 * (H + head) })) copy.setAttribute(key, value);
    return new XMLSerializer().serializeToString(copy);
  };
  const picture = async (...what) => {
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(drawing(...what))}`;
    await image.decode();
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done));
  };

  let W = 380;
  const H = 250, L = 44, R = 16, T = 24, B = 34;
  // Two charts are as wide as three, and four stand two by two.
  const fit = (place, count) => { const few = count < 3 || count === 4; W = few && wide.matches ? 560 : 380; place.classList.toggle("few", few); };
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
    figure.append(caption);
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${up}, ${title}` });
    figure.append(svg);
    if (!groups.length) {
      svg.append(make("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing to show"));
      return figure;
    }
    svg.append(make("text", { x: 0, y: 12 }, up));
    const all = groups.flatMap((group) => group.lines.flat());
    const high = Math.max(...all.map((p) => p[1]), 0), low = Math.min(...all.map((p) => p[1]), 0);
    const end = Math.max(...all.map((p) => p[0])) || 1, range = high - low || 1;
    const X = (x) => L + (W - L - R) * x / end, Y = (y) => T + (H - T - B) * (high - y) / range;
    const size = step(range);
    for (let y = Math.ceil(low / size) * size; y <= high + 1e-9; y += size) {
      svg.append(make("line", { class: "grid", x1: L, x2: W - R, y1: Y(y), y2: Y(y) }));
      svg.append(make("text", { x: L - 5, y: Y(y) + 4, "text-anchor": "end" }, short(y)));
    }
    const stride = step(end);
    for (let x = 0; x <= end + 1e-9; x += stride) svg.append(make("text", { x: X(x), y: H - B + 16, "text-anchor": "middle" }, name(x)));
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
    const file = `${title} ${up}`.replace(/[^\w]+/g, "-");
    caption.append(tools({
      PNG: () => picture(svg, title, groups).then((blob) => save(`${file}.png`, blob)),
      SVG: () => save(`${file}.svg`, new Blob([drawing(svg, title, groups)], { type: "image/svg+xml" })),
      CSV: () => save(`${file}.csv`, sheet([["method", across, "mean", "low", "high"], ...groups.flatMap((group) => group.mean.map((row) => [group.method, ...row]))])),
    }));
    const tip = byId("tip"), pointed = make("g");
    svg.append(pointed);
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * end;
      pointed.replaceChildren();
      const lines = groups.filter((group) => group.mean.length).map(({ method, other, lines, mean: middle }) => {
        const [px, py, low, most] = middle.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
        pointed.append(make("line", { class: "cross", x1: X(px), x2: X(px), y1: T, y2: H - B }), make("circle", { cx: X(px), cy: Y(py), r: 4, fill: colour(method) }));
        const spread = other ? ` (${value(low)} to ${value(most)})` : lines.length > 1 ? ` \u00b1 ${value(most - py)}` : "";
        const count = other ? "" : lines.length > 1 ? ` (${lines.length} seeds)` : " (1 seed)", line = make("div");
        line.append(dot(method), `${method}: ${value(py)}${spread} at ${name(px)}${count}`);
        return line;
      });
      tip.replaceChildren(...lines);
      tip.hidden = !lines.length;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${event.clientY + 14}px`;
    };
    svg.onpointerleave = () => { tip.hidden = true; pointed.replaceChildren(); };
    return figure;
  };
  // Charts under a legend; learning curves have one in their controls.
  const fill = (place, charts, curves) => {
    const legend = make("div", { class: "legend" });
    for (const method of curves ? methods.filter((name) => shown.methods.has(name) && curves.some((curve) => curve.method === name)) : []) {
      const entry = make("span");
      entry.append(dot(method), method);
      legend.append(entry);
    }
    place.replaceChildren(...(legend.childNodes.length ? [legend] : []), ...charts);
  };
  const draw = () => {
    const axis = byId("axis").value, steps = axis === "steps", learned = unique(learning.map((curve) => curve.task));
    const look = { x: steps ? "env steps" : "wall-clock time", y: "return", name: steps ? short : time, value: (y) => y.toFixed(1) };
    const chosen = learned.filter((task) => shown.tasks.has(task));
    fit(byId("charts"), chosen.length);
    const charts = chosen.map((task) => {
      const curves = data.curves.filter((curve) => curve.task === task);
      const others = steps ? data.others.filter((curve) => curve.task === task) : [];
      return chart({ title: task, task, others, curves: curves.map((curve) => ({ ...curve, line: points(curve[axis], curve.returns) })), ...look });
    });
    fill(byId("charts"), charts, "");
    if (!charts.length) byId("charts").append(make("p", {}, "No task is chosen."));
    for (const [id, measured] of Object.entries(data.charts)) {
      const own = measured.filter((one) => shown.tasks.has(one.task));
      fit(byId(`${id}-charts`), own.length);
      fill(byId(`${id}-charts`), own.map((one) => chart({ ...one, curves: one.curves.map((curve) => ({ ...curve, line: points(curve.xs, curve.ys) })) })), own.flatMap((one) => one.curves));
    }
    document.querySelectorAll(".swatch").forEach((mark) => { mark.style.background = colour(mark.dataset.method); });
    document.querySelectorAll(".tile[data-method]").forEach((tile) => { if (data.colours[tile.dataset.method]) tile.style.setProperty("--mark", colour(tile.dataset.method)); });
  };
  draw();

  byId("reading").textContent = [
    seeds.length > 1 ? "Lines are means over seeds, and bands one standard deviation." : "",
    data.others.length ? "Dashed lines are others' runs, and bands their bounds." : "",
    "Point at a chart to read its values; save it as PNG, SVG or CSV.",
  ].filter(Boolean).join(" ");

  // Tables
  const number = (text) => { const found = text.replace(/,/g, "").match(/[-+]?\d+(\.\d+)?/); return found ? +found[0] : -Infinity; };
  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0], caption = table.closest("details").querySelector("summary");
    caption.append(tools({ CSV: () => save(`${table.dataset.name}.csv`, sheet([...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent)))) }));
    table.querySelectorAll("thead button").forEach((button, column) => {
      let down = button.parentNode.className !== "word";
      button.onclick = () => {
        const rows = [...body.rows], totals = rows.filter((row) => row.classList.contains("total"));
        const plain = rows.filter((row) => !row.classList.contains("total"));
        const text = (row) => row.cells[column].textContent;
        plain.sort((a, b) => (button.parentNode.className === "word" ? text(a).localeCompare(text(b)) : number(text(a)) - number(text(b))) * (down ? -1 : 1));
        table.querySelectorAll("thead th").forEach((head) => head.removeAttribute("aria-sort"));
        button.parentNode.setAttribute("aria-sort", down ? "descending" : "ascending");
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
  byId("configs").hidden = Object.keys(data.configs).length < 2;
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
    if (!keys.length) { const row = make("tr"); row.append(make("td", { colspan: 3 }, "Nothing: they have the same options.")); body.append(row); }
  };
  diff();

  // The parts of the page
  for (const part of document.querySelectorAll("main > section")) {
    const title = part.querySelector("h2");
    if (title && !part.hidden) byId("parts").append(make("a", { href: `#${part.id}` }, title.textContent));
  }
  byId("parts").hidden = byId("parts").children.length < 2;
  window.onbeforeprint = () => document.querySelectorAll("details").forEach((part) => { part.open = true; });
})();
