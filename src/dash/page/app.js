"use strict";
// The page: runs, views by the address's fragment, live updates, the overview, control.

const state = {
  runs: [],           // as /api/runs lists them
  shown: new Set(),   // names
  zoom: null,         // of the overview: {from, to}
  smoothing: 0.5,
  keys: {},           // of the view: key to function
  turn: 0,            // counts renderings, so that late replies to older ones are dropped
  update: null,       // redraws the view when the run has written more
  focus() {           // the run of views that show one
    const named = new URLSearchParams(location.hash.split("?")[1] || "").get("run");
    if (named && this.runs.some(r => r.name === named)) return named;
    const first = this.runs.find(r => this.shown.has(r.name)) || this.runs[0];
    return first.name;
  },
};

function color(name) {
  return COLORS[state.runs.findIndex(r => r.name === name) % COLORS.length];
}

async function ask(path, params, body) {
  const query = new URLSearchParams();
  for (const [k, v] of Object.entries(params || {})) if (v !== undefined && v !== null) query.set(k, v);
  const key = sessionStorage.getItem("key"), headers = {};
  if (key) headers.Authorization = "Bearer " + key;
  if (body) headers["Content-Type"] = "application/json";
  const reply = await fetch(path + (query.size ? "?" + query : ""),
    { headers, method: body ? "POST" : "GET", body: body ? JSON.stringify(body) : undefined });
  if (reply.status === 401) document.getElementById("key").hidden = false;
  if (!reply.ok) {
    const why = await reply.json().catch(() => ({}));
    throw new Error(why.detail || why.error?.message || reply.statusText);
  }
  return reply.json();
}

// --- overview -----------------------------------------------------------------------------

const CHARTS = [
  ["reward", ["rollout/raw_reward"]],
  ["response length", ["rollout/response_len/mean", "rollout/response_lengths"]],
  ["truncated", ["rollout/truncated_ratio", "rollout/truncated"]],
  ["KL to the policy of the rollout", ["train/ppo_kl"]],
  ["KL to the reference", ["train/kl_loss", "rollout/kl"]],
  ["entropy", ["train/entropy_loss"]],
  ["loss", ["train/loss"]],
  ["gradient norm", ["train/grad_norm"]],
  ["learning rate", ["train/lr-pg_0"]],
  ["log-prob difference of training and rollout", ["train/train_rollout_logprob_abs_diff"]],
  ["rollout tokens/s", ["perf/rollout_tok_per_s"]],
  ["training tokens/s", ["perf/actor_train_tok_per_s"]],
  ["seconds of a rollout", ["perf/step_time"]],
  ["memory (bytes)", ["perf/resident_bytes"]],
];

async function showOverview(main) {
  const runs = state.runs.filter(r => state.shown.has(r.name)).map(r => r.name);
  const metas = await Promise.all(runs.map(run => ask("/api/meta", { run })));
  const keys = [...new Set(metas.flatMap(m => m.metric_keys))];
  const evals = keys.filter(k => /^eval\/[^/]+$/.test(k) && !/_ratio$/.test(k));
  const wanted = [CHARTS[0], ...evals.map(k => [k, [k]]), ...CHARTS.slice(1)]
    .map(([title, names]) => [title, names.find(n => keys.includes(n))]).filter(([, key]) => key);
  const rest = keys.filter(k => !wanted.some(([, key]) => key === k));
  const slider = h("input", { id: "smoothing", type: "range", min: "0", max: "0.98", step: "0.02", value: state.smoothing,
    oninput: e => { state.smoothing = Number(e.target.value); charts.forEach(c => c.draw()); } });
  const advice = h("div", { id: "advice" }), grid = h("div", { class: "grid", id: "charts" });
  const filter = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Filter metrics" });
  const others = h("div", { class: "grid" }), details = h("details", { id: "others" },
    h("summary", null, "All other metrics (" + rest.length + ")"), h("div", { class: "bar" }, filter), others);
  main.append(h("h2", null, "Overview"), advice, h("div", { class: "bar" }, h("label", null, "smoothing ", slider),
    h("button", { type: "button", onclick: () => zoom(null) }, "show all"),
    h("span", { class: "dim" }, "drag in a chart to zoom; with the keyboard: +, -, arrows, Escape")), grid, details);
  let charts = [];
  const options = { zoom: () => state.zoom, smoothing: () => state.smoothing, onzoom: z => zoom(z) };

  function zoom(z) {
    state.zoom = z;
    load();
  }
  function add(to, title, key) {
    const c = new Chart(title, options);
    c.key_ = key;
    c.root.dataset.key = key;
    to.append(c.root);
    charts.push(c);
  }
  async function load() {
    const names = charts.map(c => c.key_).join(",");
    const z = state.zoom, how = { keys: names, points: 600, x: "rollout/step" };
    if (z) { how.from = Math.floor(z.from); how.to = Math.ceil(z.to); }
    const all = await Promise.all(runs.map(run => ask("/api/metrics", { ...how, run })));
    for (const c of charts)
      c.set(runs.map((run, i) => ({ name: run, color: color(run), ...all[i][c.key_] })).filter(s => s.x && s.x.length));
  }
  async function advise() {
    const all = await Promise.all(runs.map(run => ask("/api/advisory", { run })));
    advice.replaceChildren(...all.flatMap((a, i) => a.advisories.map(x =>
      h("p", { class: "advice " + x.level }, (runs.length > 1 ? runs[i] + ": " : "") + x.message))));
  }
  for (const [title, key] of wanted) add(grid, title === key ? title : title + " (" + key + ")", key);
  function fill() {
    charts = charts.filter(c => c.root.parentNode !== others);
    others.replaceChildren();
    if (details.open) rest.filter(k => k.includes(filter.value)).slice(0, 60).forEach(k => add(others, k, k));
    load();
  }
  details.addEventListener("toggle", fill);
  filter.addEventListener("input", fill);
  window.onresize = () => charts.forEach(c => c.draw());
  state.update = () => { load(); advise(); };
  await Promise.all([load(), advise()]);
}

// --- control ------------------------------------------------------------------------------

async function showControl(main) {
  const run = state.focus(), note = h("p", { role: "status", id: "control-note" }), log = h("div");
  const lr = h("input", { type: "number", step: "any", min: "0", "aria-label": "Learning rate", size: 10 });
  const does = state.control, button = (text, body) => h("button", { type: "button", disabled: !does, onclick: async () => {
    try {
      await ask("/api/control", { run }, body());
      note.textContent = "requested: " + text;
    } catch (e) {
      note.textContent = e.message;
    }
    show();
  } }, text);
  async function show() {
    const c = await ask("/api/control", { run });
    log.replaceChildren(table(c.actions, [["rollout", a => a.rollout], ["action", a => a.action],
      ["value", a => a.value ?? "", (a, v) => v === "" ? "" : short(v)],
      ["time", a => a.time, (a, v) => new Date(1000 * v).toLocaleString()]]));
  }
  main.append(h("h2", null, "Control of " + run),
    does ? null : h("p", null, "The dashboard is read-only. Start it with --api-key-file FILE to control runs."),
    h("div", { class: "bar" }, button("pause before the next rollout", () => ({ action: "pause" })),
      button("resume", () => ({ action: "resume" })), button("save after this rollout", () => ({ action: "save" })),
      button("stop after this rollout", () => ({ action: "stop" })),
      lr, button("set the learning rate", () => ({ action: "lr", value: Number(lr.value) }))),
    note, h("p", { class: "dim" }, "A new learning rate replaces --lr from the next rollout on and scales its schedule. " +
      "Actions are recorded in control.jsonl; a run that resumes repeats changes of the learning rate at the same rollouts."),
    h("h2", null, "Carried out"), log);
  state.update = show;
  await show();
}

// --- the page -----------------------------------------------------------------------------

const VIEWS = { overview: showOverview, timeline: showTimeline, rollouts: showRollouts, group: showGroup, sample: showSample,
  prompt: showPrompt, search: showSearch, control: showControl };

async function render() {
  const [path, query] = (location.hash || "#/overview").slice(2).split("?"), words = path.split("/").map(decodeURIComponent);
  const view = VIEWS[words[0]] ? words[0] : "overview", turn = ++state.turn;
  const main = h("main", { id: "main", tabindex: "-1" });
  state.keys = {};
  state.update = null;
  for (const a of document.querySelectorAll("#nav a"))
    if (a.getAttribute("href") === "#/" + ({ group: "rollouts", sample: "rollouts", prompt: "rollouts" }[view] || view))
      a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  const old = document.getElementById("main");
  if (!state.runs.length) return;
  main.dataset.view = view;
  old.replaceWith(main);
  try {
    await VIEWS[view](main, words.slice(1), new URLSearchParams(query || ""));
  } catch (e) {
    if (turn === state.turn) main.append(h("p", { class: "error" }, e.message));
  }
  if (turn === state.turn) main.dataset.ready = "1";
}

function showRuns() {
  const box = document.getElementById("runs");
  box.replaceChildren(...state.runs.map(r => {
    const s = h("span", { class: "swatch" });
    s.style.background = color(r.name);
    return h("label", { title: r.dir }, h("input", { type: "checkbox", checked: state.shown.has(r.name), onchange: e => {
      if (e.target.checked) state.shown.add(r.name); else state.shown.delete(r.name);
      render();
    } }), s, r.name + (r.live ? " (running)" : ""));
  }));
}

async function follow() {
  if (document.hidden && state.runs.length) return;
  try {
    const now = await ask("/api/runs"), before = state.runs;
    state.runs = now.runs;
    state.control = now.control;
    document.getElementById("key").hidden = true;
    const live = now.runs.filter(r => r.live).length;
    document.getElementById("state").textContent = "rollout " + Math.max(...now.runs.map(r => r.last_rollout)) +
      (live ? ", running" : ", not running");
    if (!before.length) {
      now.runs.forEach(r => state.shown.add(r.name));
      showRuns();
      render();
    } else if (now.runs.some((r, i) => before[i].revision !== r.revision || before[i].live !== r.live)) {
      showRuns();
      if (state.update) state.update();
    }
  } catch (e) {
    document.getElementById("state").textContent = e.message;
  }
}

document.getElementById("key").addEventListener("submit", e => {
  e.preventDefault();
  sessionStorage.setItem("key", document.getElementById("key-text").value);
  state.runs = [];
  follow();
});
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || /INPUT|SELECT|TEXTAREA/.test(e.target.tagName)) return;
  const views = ["overview", "timeline", "rollouts", "search", "control"];
  if (e.key >= "1" && e.key <= "5") location.hash = "#/" + views[e.key - 1];
  else if (state.keys[e.key]) state.keys[e.key]();
  else return;
  e.preventDefault();
});
window.addEventListener("hashchange", render);
follow();
setInterval(follow, 2000);
