"use strict";
const SHOWN_LAYERS = 15, POLL_MS = 400, MARK = { "X-Anynpu-Playground": "1" };
let key = sessionStorage.getItem("key") || "", state = null, job = null, picked = { model: null, pictures: [] }, sent = new Map(), addresses = [];
const SAME_BOX = 0.5; // intersection over union from which on two boxes show the same thing
const byId = name => document.getElementById(name);
function make(tag, text, kind) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}
const number = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const time = ms => ms >= 1 ? `${number(ms, 2)} ms` : `${number(1000 * ms, 0)} us`;
const size = bytes => bytes >= 1e6 ? `${number(bytes / 1e6, 1)} MB` : `${number(bytes / 1e3, 0)} kB`;
const plural = (count, one, many) => `${count} ${count === 1 ? one : many || `${one}s`}`;

class Trouble extends Error {
  constructor(text, hint) { super(text); this.hint = hint || ""; }
}
async function call(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, { method, body, headers: { ...(method === "POST" ? MARK : {}), ...(key ? { "X-API-Key": key } : {}) } });
  } catch (error) {
    throw new Trouble("the server does not answer", "it may have ended; start it again with: anynpu serve --playground");
  }
  if (answer.status === 401) byId("access").hidden = false;
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    const [text, hint] = String(said.error || `the server answered with status ${answer.status}`).split(/\s*\(?hint: /);
    throw new Trouble(text, hint ? hint.replace(/\)$/, "") : "");
  }
  return answer;
}
function named(text) { // the visitor's names for files that the server keeps under its own
  text = text.replace(/\b(?:image|picture) (\d+)\b/, (all, at) => picked.pictures[at - 1] ? picked.pictures[at - 1].name : all);
  return picked.model ? text.replace(/^the model\b|\bmodel\.onnx\b/, picked.model.name) : text;
}
function trouble(error) {
  const box = byId("trouble");
  box.hidden = !error;
  box.replaceChildren();
  if (error) {
    box.append(make("b", `${named(error.message)}.`.replace(/\.\.$/, ".")));
    if (error.hint) box.append(make("div", `What to do: ${named(error.hint)}`));
  }
}
function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, text]) => Object.assign(make("option", text), { value })));
}
async function begin() {
  try {
    state = await (await call("GET", "/playground/state")).json();
  } catch (error) {
    trouble(error);
    return;
  }
  trouble(null);
  const groups = new Map();
  for (const chip of state.chips) {
    if (!groups.has(chip.vendor)) groups.set(chip.vendor, Object.assign(make("optgroup"), { label: chip.vendor }));
    groups.get(chip.vendor).append(Object.assign(make("option", chip.name), { value: chip.name }));
  }
  byId("chip").replaceChildren(...groups.values());
  if (state.chips.some(chip => chip.name === "rk3588")) byId("chip").value = "rk3588";
  options(byId("accuracy"), Object.entries(state.accuracies));
  options(byId("scale"), Object.entries(state.scales));
  byId("sample-line").hidden = !state.sample;
  byId("served-line").hidden = state.served.length === 0;
  options(byId("served"), [["", "none"], ...state.served.map(one => [one.name, one.name])]);
  types();
  byId("results").dataset.ready = "yes";
  if (state.job && state.job.state === "running") follow(state.job); // the page was loaded again
}
function types() {
  const chip = state.chips.find(one => one.name === byId("chip").value), before = byId("dtype").value;
  options(byId("dtype"), Object.entries(state.types).filter(([name]) => name !== "fp16" || chip.float16));
  if ([...byId("dtype").options].some(one => one.value === before)) byId("dtype").value = before;
}
function refresh() {
  const served = byId("served").value, file = picked.model;
  byId("model-words").textContent = file ? file.size ? `${file.name}, ${size(file.size)}` : file.name : "Drop an ONNX file here, or click";
  byId("drop-model").classList.toggle("filled", Boolean(file));
  byId("pictures-words").textContent = picked.pictures.length ? plural(picked.pictures.length, "image") : "Drop one or more images here, or click";
  byId("drop-pictures").classList.toggle("filled", picked.pictures.length > 0);
  for (const name of ["chip", "dtype", "accuracy", "scale", "order", "shape"]) byId(name).disabled = Boolean(served);
  byId("accuracy").disabled ||= byId("dtype").value === "fp16"; // there is nothing to fit
  byId("order").disabled = Boolean(served) || byId("scale").value === "auto";
  byId("go").disabled = Boolean(job) || !(file || (served && picked.pictures.length));
  byId("cancel").hidden = byId("progress").hidden = !job;
}
function take(kind, files) {
  if (kind === "model") {
    picked.model = files[0] || null;
    byId("served").value = "";
  } else {
    picked.pictures = files.slice(0, 16);
    addresses.forEach(URL.revokeObjectURL);
    addresses = picked.pictures.map(file => URL.createObjectURL(file));
    byId("thumbs").replaceChildren(...addresses.slice(0, 8).map((address, at) => Object.assign(make("img"), { src: address, alt: picked.pictures[at].name })));
  }
  trouble(null);
  refresh();
}
async function drop(kind, file) { // each file is sent once
  if (sent.has(file)) return sent.get(file);
  if (file.size > state.max_bytes) throw new Trouble(`${file.name} has ${size(file.size)}, and the server takes ${size(state.max_bytes)}`, "start it with a larger --max-request");
  sent.set(file, (await (await call("POST", `/playground/files/${kind}`, file)).json()).name);
  return sent.get(file);
}
async function sample() { // a model and images that the server brings
  try {
    const made = await (await call("POST", "/playground/sample")).json();
    const file = one => { const held = { name: one.file, size: 0 }; sent.set(held, one.name); return held; };
    picked = { model: file(made.model), pictures: made.pictures.map(file) };
    byId("served").value = "";
    byId("thumbs").replaceChildren();
    await go();
  } catch (error) {
    trouble(error);
  }
}
async function go() {
  trouble(null);
  const served = byId("served").value, text = byId("shape").value.trim();
  job = { stage: "sending the files", done: 0, total: null };
  told(job);
  refresh();
  try {
    const shape = text ? text.split(/[\s,x]+/).map(Number) : [];
    const request = { pictures: [], chip: byId("chip").value, dtype: byId("dtype").value, accuracy: byId("accuracy").value, scale: byId("scale").value, order: byId("order").value, shape };
    if (served) request.served = served; else request.model = await drop("model", picked.model);
    for (const file of picked.pictures) request.pictures.push(await drop("picture", file));
    await follow(await (await call("POST", "/playground/jobs", JSON.stringify(request))).json());
  } catch (error) {
    if (/not there any more/.test(error.message)) sent = new Map();
    ended("failed");
    trouble(error);
  }
}
function told(now) {
  byId("stage").textContent = now.stage;
  const bar = byId("bar");
  if (now.total > 1) { bar.max = now.total; bar.value = now.done; } else bar.removeAttribute("value");
}
async function follow(started) {
  job = started;
  byId("results").dataset.state = "running";
  byId("results").replaceChildren(make("p", "Compiling and running. Results appear here.", "empty dim"));
  for (;;) {
    told(job);
    refresh();
    if (job.state !== "running") break;
    await new Promise(done => setTimeout(done, POLL_MS));
    job = await (await call("GET", `/playground/jobs/${job.job}`)).json();
  }
  const last = job;
  if (last.state === "done") await show(last);
  ended(last.state);
  if (last.state !== "done") {
    byId("results").replaceChildren(make("p", "No results: see the message beside the form.", "empty dim"));
    trouble(new Trouble(last.error, last.hint));
  }
}
function ended(how) {
  job = null;
  refresh();
  byId("results").dataset.state = how;
}
function table(heads, rows, numeric) {
  const node = make("table"), head = make("tr"), body = make("tbody"), wide = make("div", undefined, "wide");
  head.append(...heads.map((text, at) => make("th", text, numeric.includes(at) ? "number" : "")));
  for (const row of rows) {
    const line = make("tr");
    line.append(...row.map((cell, at) => {
      const one = make("td", cell instanceof Node ? undefined : cell, numeric.includes(at) ? "number" : at === 0 ? "name" : "");
      if (cell instanceof Node) one.append(cell);
      return one;
    }));
    body.append(line);
  }
  node.append(make("thead"), body);
  node.tHead.append(head);
  wide.append(node);
  return wide;
}
async function side(name, found, result, at) {
  const figure = make("figure", undefined, "side"), caption = make("figcaption"), picture = make("img");
  const title = name === "float" ? "float32, the file as it is" : `${result.dtype} on ${result.chip}`;
  const data = await (await call("GET", `/playground/jobs/${at}/pictures/${name}`)).blob();
  picture.src = URL.createObjectURL(data);
  picture.alt = `what ${title} sees`;
  caption.append(make("b", title), make("span", `${found.count} found`, "dim"));
  figure.dataset.side = name;
  figure.append(caption, picture, finds(found.rows));
  return figure;
}
function finds(rows) {
  if (!rows.length) return make("p", "Nothing was found.", "dim");
  const words = row => row.text !== undefined ? row.text || "(empty)" : row.label !== undefined ? row.label : "text";
  const share = row => row.share !== undefined ? `${number(100 * row.share, 1)} %` : number(row.score, 3);
  const place = row => row.box ? row.box.map(value => Math.round(value)).join(", ") : "";
  return table(["what", rows[0].share !== undefined ? "share" : "score", "box"], rows.slice(0, 12).map(row => [words(row), share(row), place(row)]), [1, 2]);
}
function overlap(a, b) { // intersection over union of two boxes: left, top, right, bottom
  const across = Math.min(a[2], b[2]) - Math.max(a[0], b[0]), down = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  if (across <= 0 || down <= 0) return 0;
  const area = box => (box[2] - box[0]) * (box[3] - box[1]);
  return across * down / (area(a) + area(b) - across * down);
}
function matched(floats, compiled) { // each box of the float model with its counterpart, and what only one side has
  const left = [...compiled], rows = [];
  for (const row of floats) {
    const same = left.filter(one => one.label === row.label).map(one => [overlap(row.box, one.box), one]).sort((a, b) => b[0] - a[0])[0];
    const found = same && same[0] >= SAME_BOX ? same[1] : null;
    if (found) left.splice(left.indexOf(found), 1);
    rows.push([row, found, found ? same[0] : 0]);
  }
  return [...rows, ...left.map(row => [null, row, 0])];
}
function pairs(sides, result) { // a table of both sides' boxes, what one side lacks first
  const all = [sides.float, sides.compiled].every(one => one && one.rows.every(row => row.box)) ? matched(sides.float.rows, sides.compiled.rows) : [];
  if (!all.length) return [];
  const kept = all.filter(([a, b]) => a && b).length, floats = all.filter(([a]) => a).length;
  const order = [...all].sort((x, y) => (x[0] && x[1] ? 1 : 0) - (y[0] && y[1] ? 1 : 0));
  const score = row => row ? number(row.score, 3) : "not found";
  const place = table(["what", "float score", `${result.dtype} score`, "overlap"], order.slice(0, 50).map(([a, b, share]) =>
    [(a || b).label || "box", score(a), score(b), a && b ? number(share, 2) : "-"]), [1, 2, 3]);
  [...place.querySelectorAll("tbody tr")].forEach((line, at) => line.classList.toggle("lost", !(order[at][0] && order[at][1])));
  const extra = all.length - floats;
  const words = `${kept} of ${floats} boxes of the float model are found by ${result.dtype} too${extra ? `, and ${plural(extra, "box", "boxes")} more` : ""}.`;
  return section("Boxes of both sides", make("p", words), place);
}
function verdict(one) { // the cosine with what it means
  const cell = document.createDocumentFragment();
  cell.append(number(one.cosine, 4), " ", make("span", one.verdict, `verdict ${one.verdict.split(/[ ,]/)[0]}`));
  return cell;
}
function section(title, ...content) {
  return [make("h2", title), ...content];
}
function figures(result) {
  const cpu = result.on_cpu.length, shown = [
    [time(result.latency_ms), `predicted on one core of ${result.chip}`],
    [`${time(result.range_ms[0])} to ${time(result.range_ms[1])}`, "80 % of similar networks are in this range"],
    [`${number(result.fps, 0)} per second`, result.cores === 1 ? "on its core" : `on all ${result.cores} cores`],
    [size(result.memory.all), `memory: ${size(result.memory.weights)} of weights, ${size(result.memory.internal)} inside`],
    [cpu ? plural(cpu, "layer") : "none", cpu ? `on the CPU, ${number(100 * result.cpu_share, 0)} % of the time` : "of its layers on the CPU"],
  ];
  const row = make("div", undefined, "figures");
  row.append(...shown.map(([value, label]) => {
    const box = make("div", undefined, "figure");
    box.append(make("b", value), make("span", label));
    return box;
  }));
  return row;
}
function layers(result) {
  const slowest = [...result.layers].sort((a, b) => b.time_us - a.time_us), longest = Math.max(1e-9, slowest.length ? slowest[0].time_us : 0);
  const rows = list => table(["layer", "operator", "", "time, us", "bound by"], list.map(layer => {
    const bar = make("div", undefined, "bar"), full = make("i", undefined, layer.bound === "cpu" ? "cpu" : "");
    full.style.width = `${100 * layer.time_us / longest}%`;
    bar.append(full);
    return [layer.name, layer.operator, bar, number(layer.time_us, 1), layer.bound];
  }), [3]);
  const place = make("div");
  place.append(rows(slowest.slice(0, SHOWN_LAYERS)));
  if (slowest.length > SHOWN_LAYERS) {
    const more = make("button", `Show all ${slowest.length} layers in their order`);
    more.type = "button";
    more.addEventListener("click", () => place.replaceChildren(rows(result.layers)));
    place.append(more);
  }
  return place;
}
function list(sentences) {
  const node = make("ul", undefined, "notes");
  node.append(...sentences.map(text => make("li", text)));
  return node;
}
async function show(last) {
  const result = last.result, parts = [figures(result)], names = Object.keys(result.sides || {});
  const notes = [...(result.notes || []), ...(result.confidence ? [`Times are predicted: ${result.confidence}.`] : [])];
  if (names.length) {
    const both = make("div", undefined, "sides");
    for (const name of ["float", "compiled"]) if (names.includes(name)) both.append(await side(name, result.sides[name], result, last.job));
    parts.push(...section("Results on the image", make("p", result.task, "dim"), both), ...pairs(result.sides, result));
  }
  parts.push(...section("Notes", list(notes)));
  if (result.distance && result.distance.length) {
    const rows = result.distance.map(one => [one.output, one.shape.join(" x "), verdict(one), one.snr_db === null ? "-" : number(one.snr_db, 1)]);
    parts.push(...section("Difference of the outputs to the float model", table(["output", "shape", "cosine", "signal-to-noise, dB"], rows, [2, 3])));
  }
  if (result.on_cpu.length) {
    parts.push(...section("Layers on the CPU", table(["layer", "operator", "reason", "time, us"],
      result.on_cpu.map(one => [one.name, one.operator, one.reason, number(one.time_us, 1)]), [3])));
  }
  parts.push(...section("Time per layer", ...(result.advice.length ? [list(result.advice)] : []), layers(result)));
  if (result.command) parts.push(...section("Command line", make("code", result.command)));
  byId("results").replaceChildren(...parts);
}
for (const [kind, zone, field] of [["model", "drop-model", "model"], ["pictures", "drop-pictures", "pictures"]]) {
  const area = byId(zone);
  byId(field).addEventListener("change", event => take(kind, [...event.target.files]));
  area.addEventListener("dragover", event => { event.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", event => {
    event.preventDefault();
    area.classList.remove("over");
    take(kind, [...event.dataTransfer.files]);
  });
}
for (const name of ["dragover", "drop"]) window.addEventListener(name, event => event.preventDefault()); // a file dropped elsewhere does not replace the page
byId("chip").addEventListener("change", () => { types(); refresh(); });
byId("scale").addEventListener("change", refresh);
byId("served").addEventListener("change", () => { if (byId("served").value) picked.model = null; refresh(); });
byId("request").addEventListener("submit", event => { event.preventDefault(); go(); });
byId("sample").addEventListener("click", sample);
byId("cancel").addEventListener("click", () => { if (job && job.job) call("POST", `/playground/jobs/${job.job}/cancel`).catch(trouble); });
byId("access").addEventListener("submit", event => {
  event.preventDefault();
  key = byId("key").value;
  sessionStorage.setItem("key", key);
  byId("access").hidden = true;
  begin();
});
refresh();
begin();
