"use strict";
const SPAN = 120, WIDEST = 480, HEIGHT = 132, LEFT = 44, BOTTOM = 16, TOP = 8;
let key = sessionStorage.getItem("key") || "";
const byId = name => document.getElementById(name);
function make(tag, text, kind) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}
function draw(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function round(most) { // the end of an axis: 1, 2 or 5 times a power of ten
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 5, 10].find(step => step * power >= most);
}
const short = value => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
function chart(title, unit, now, points, series, most) {
  const WIDTH = Math.max(240, Math.min(WIDEST, byId("models").clientWidth - 32)); // on a phone the text keeps its size
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  const top = most || round(Math.max(unit ? 0 : 1, ...points.flatMap(point => series.map(one => one.of(point)))) || 1);
  const x = at => LEFT + (WIDTH - LEFT) * (1 - (now - at) / SPAN), y = value => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top;
  for (const share of [0, .5, 1]) {
    svg.append(draw("line", { x1: LEFT, x2: WIDTH, y1: y(share * top), y2: y(share * top) }));
    svg.append(draw("text", { x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, String(+(share * top).toPrecision(3))));
  }
  for (const ago of [120, 90, 60, 30]) svg.append(draw("text", { x: x(now - ago), y: HEIGHT - 2 }, `-${ago} s`));
  const figure = make("figure"), caption = make("figcaption");
  caption.append(make("b", title));
  for (const one of series) {
    const line = points.filter(point => now - point.at <= SPAN).map(point => `${x(point.at).toFixed(1)},${y(one.of(point)).toFixed(1)}`);
    const drawn = draw("polyline", { points: line.join(" ") });
    drawn.style.stroke = `var(${one.color})`;
    svg.append(drawn);
    const name = make("span", `${one.name} ${points.length ? short(one.of(points[points.length - 1])) : "-"} ${unit}`);
    name.style.setProperty("--own", `var(${one.color})`);
    caption.append(name);
  }
  figure.append(caption, svg);
  return figure;
}
function show(now) {
  byId("about").textContent = `process ${now.process}, up ${Math.round(now.uptime_s)} s, ${now.connections} connections`;
  const cards = now.models.map(model => {
    const name = `${model.name}:${model.version}`, points = model.history, last = points[points.length - 1];
    const card = make("article"), figures = make("dl"), charts = make("div", undefined, "charts");
    card.dataset.model = name;
    card.append(make("h2", name), make("div", model.device, "dim"), figures);
    const shown = { "answered": model.answered, "per second": last ? last.rate.toFixed(1) : "-", "shed": model.shed, "failed": model.failed,
      "cancelled": model.cancelled, "waiting": model.waiting, "running": model.running, "p50 ms": model.p50_ms.toFixed(2),
      "p95 ms": model.p95_ms.toFixed(2), "p99 ms": model.p99_ms.toFixed(2), "on the NPU ms": model.run_ms.toFixed(2) };
    for (const [label, value] of Object.entries(shown)) {
      const pair = make("div"), figure = make("dd", String(value));
      figure.dataset.figure = label;
      pair.append(make("dt", label), figure);
      figures.append(pair);
    }
    model.cores.forEach((core, at) => {
      const busy = last && last.busy[at] !== undefined ? last.busy[at] : 0;
      const row = make("div", undefined, "core"), bar = make("div", undefined, "bar"), full = make("i"), share = make("span", `${Math.round(100 * busy)} %`);
      full.style.width = `${100 * busy}%`;
      share.dataset.core = at;
      bar.append(full);
      row.append(make("span", `core ${core.label ?? at}`), bar, share);
      card.append(row);
    });
    charts.append(
      chart("requests", "/s", now.uptime_s, points, [
        { name: "answered", color: "--accent", of: point => point.rate }, { name: "shed", color: "--warn", of: point => point.shed }]),
      chart("latency", "ms", now.uptime_s, points, [
        { name: "p50", color: "--accent", of: point => point.p50_ms }, { name: "p95", color: "--second", of: point => point.p95_ms },
        { name: "p99", color: "--third", of: point => point.p99_ms }]),
      chart("cores busy", "%", now.uptime_s, points, [
        { name: "mean", color: "--accent", of: point => 100 * point.busy.reduce((sum, one) => sum + one, 0) / Math.max(1, point.busy.length) }], 100),
      chart("queue", "", now.uptime_s, points, [{ name: "waiting", color: "--second", of: point => point.waiting }]));
    card.append(charts);
    return card;
  });
  byId("models").replaceChildren(...cards);
  byId("absent").replaceChildren(...now.unavailable.map(one => make("p", `${one.name}:${one.version} is not loaded: ${one.reason}`, "dim")));
}
async function look() {
  const state = byId("state");
  try {
    const answer = await fetch("/status/data", { headers: key ? { "X-API-Key": key } : {} });
    byId("access").hidden = answer.status !== 401;
    if (!answer.ok) throw new Error(answer.status === 401 ? "needs an API key" : `status ${answer.status}`);
    show(await answer.json());
    state.textContent = "live";
    state.className = "";
  } catch (error) {
    state.textContent = error.message;
    state.className = "bad";
  }
}
byId("access").addEventListener("submit", event => {
  event.preventDefault();
  key = byId("key").value;
  sessionStorage.setItem("key", key);
  look();
});
look();
setInterval(look, 1000);
