"use strict";
// Rollouts, their groups, samples and tokens; search; one prompt over the rollouts.

function sampleLink(row, run) {
  const at = "#/sample/" + row.rollout_id + "/" + row.sample_index + (row.set ? "/" + encodeURIComponent(row.set) : "");
  return h("a", { href: at + "?run=" + encodeURIComponent(run) }, "sample " + row.sample_index);
}

// A table whose columns sort.  columns: [[title, value(row), show(row, value)]]
function table(rows, columns) {
  const body = h("tbody");
  let by = -1, down = false;
  function fill() {
    const sorted = by < 0 ? rows : [...rows].sort((a, b) => {
      const x = columns[by][1](a), y = columns[by][1](b);
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    body.replaceChildren(...sorted.map(r => h("tr", null, columns.map(c => {
      const shown = c[2] ? c[2](r, c[1](r)) : c[1](r);
      return shown instanceof Node && shown.tagName === "TD" ? shown : h("td", null, shown);
    }))));
  }
  fill();
  return h("div", { class: "wide" }, h("table", null, h("thead", null, h("tr", null, columns.map((c, i) =>
    h("th", { scope: "col" }, h("button", { type: "button", onclick: () => { down = by === i && !down; by = i; fill(); } },
      c[0]))))), body));
}

function meter(x, low, high) {
  const inner = h("div"), share = high > low ? (x - low) / (high - low) : x > 0 ? 1 : 0;
  inner.style.width = Math.round(100 * share) + "%";
  return h("td", null, h("div", { class: "meter", title: short(x) }, inner), short(x));
}

function rewardRange(rows, key) {
  return [Math.min(0, ...rows.map(r => r[key] ?? 0)), Math.max(0, ...rows.map(r => r[key] ?? 0))];
}

// --- rollouts -----------------------------------------------------------------------------

async function showRollouts(main, words) {
  const run = state.focus(), meta = await ask("/api/meta", { run });
  const evals = words[1] === "eval", ids = evals ? meta.rollout_ids.eval : meta.rollout_ids.train;
  if (!ids.length) {
    main.append(h("h2", null, "Rollouts of " + run), h("p", null, "The run has recorded no samples yet."));
    return;
  }
  const now = words[0] !== undefined && words[0] !== "" ? Number(words[0]) : ids[ids.length - 1];
  const at = ids.indexOf(now), set = evals ? words[2] || meta.eval_sets[0] : null;
  const link = (n, e) => "#/rollouts/" + n + (e ? "/eval/" + encodeURIComponent(set || "") : "");
  const number = h("input", { type: "number", value: now, min: ids[0], max: ids[ids.length - 1], "aria-label": "Rollout",
    onchange: e => { location.hash = link(e.target.value, evals); } });
  const bar = h("div", { class: "bar" },
    h("a", { href: link(ids[Math.max(at - 1, 0)], evals) }, "previous"), number,
    h("a", { href: link(ids[Math.min(at + 1, ids.length - 1)], evals) }, "next"),
    h("span", { class: "dim" }, ids.length + (evals ? " evaluations" : " rollouts")),
    meta.rollout_ids.eval.length
      ? h("a", { href: evals ? "#/rollouts" : "#/rollouts/" + meta.rollout_ids.eval.at(-1) + "/eval" },
        evals ? "training samples" : "evaluations") : null);
  if (evals && meta.eval_sets.length > 1)
    bar.append(h("select", { "aria-label": "Data set", onchange: e => {
      location.hash = "#/rollouts/" + now + "/eval/" + encodeURIComponent(e.target.value);
    } }, meta.eval_sets.map(s => h("option", { selected: s === set }, s))));
  main.append(h("h2", null, (evals ? "Evaluation after rollout " : "Rollout ") + now + " of " + run), bar);
  if (evals) {
    const s = await ask("/api/rollout/" + now + "/summary", { run, eval: 1, set });
    main.append(sampleTable(s.rows, run));
    return;
  }
  const groups = (await ask("/api/rollout/" + now + "/groups", { run })).rows;
  const [low, high] = rewardRange(groups, "reward_max"), flat = groups.filter(g => g.zero_std).length;
  main.append(h("p", { class: "dim" }, groups.length + " groups, " + groups.reduce((a, g) => a + g.n, 0) + " samples; " +
    flat + " groups without a difference in reward"), table(groups, [
    ["group", g => g.group_index, g => h("a", { href: "#/group/" + now + "/" + g.group_index }, "group " + g.group_index)],
    ["samples", g => g.n],
    ["mean reward", g => g.reward_mean, (g, v) => meter(v, low, high)],
    ["deviation", g => g.reward_std, (g, v) => short(v)],
    ["least", g => g.reward_min, (g, v) => short(v)],
    ["most", g => g.reward_max, (g, v) => short(v)],
    ["tokens", g => g.response_length_mean, (g, v) => short(v)],
    ["cut off", g => g.truncated_frac, (g, v) => Math.round(100 * v) + " %"],
    ["prompt", g => g.row, g => g.row >= 0 ? h("a", { href: "#/prompt/" + g.row }, "row " + g.row) : "-"],
  ]));
}

function sampleTable(rows, run) {
  const [low, high] = rewardRange(rows, "reward");
  const columns = [
    ["sample", r => r.sample_index, r => sampleLink(r, run)],
    ["rollout", r => r.rollout_id],
    ["group", r => r.group_index],
    ["reward", r => r.reward, (r, v) => v === null ? "-" : meter(v, low, high)],
    ["status", r => r.status],
    ["tokens", r => r.response_length],
  ];
  if (rows.some(r => r.response !== undefined))
    columns.push(["prompt (its end)", r => r.prompt, (r, v) => h("td", { class: "text", title: v }, v.slice(-120))],
      ["response", r => r.response, (r, v) => h("td", { class: "text", title: v }, v)]);
  return table(rows, columns);
}

async function showGroup(main, words) {
  const run = state.focus(), [rollout, group] = words;
  const rows = (await ask("/api/samples", { run, rollout, group, limit: 1000 })).rows;
  main.append(h("h2", null, "Group " + group + " of rollout " + rollout),
    h("div", { class: "bar" }, h("a", { href: "#/rollouts/" + rollout }, "rollout " + rollout),
      rows.length && rows[0].row >= 0 ? h("a", { href: "#/prompt/" + rows[0].row }, "this prompt in all rollouts") : null),
    sampleTable(rows, run));
}

// --- one prompt over the rollouts ---------------------------------------------------------

async function showPrompt(main, words) {
  const run = state.focus(), row = words[0], rows = [];
  let after;
  do {
    const page = await ask("/api/samples", { run, row, limit: 1000, after });
    rows.push(...page.rows);
    after = page.next;
  } while (after && rows.length < 5000);
  main.append(h("h2", null, "Prompt " + row + " of " + run));
  if (!rows.length) {
    main.append(h("p", null, "No sample has this prompt."));
    return;
  }
  main.append(h("pre", { class: "plain card" }, rows[0].prompt));
  const ids = [...new Set(rows.map(r => r.rollout_id))];
  const mean = (key, id) => {
    const of = rows.filter(r => r.rollout_id === id && r[key] !== null);
    return of.length ? of.reduce((a, r) => a + r[key], 0) / of.length : null;
  };
  const grid = h("div", { class: "grid" });
  main.append(grid);
  for (const [title, key] of [["mean reward", "reward"], ["mean tokens", "response_length"]]) {
    const c = new Chart(title, { zoom: () => null, onzoom: () => {}, smoothing: () => 0 });
    grid.append(c.root);
    c.set([{ name: title, color: COLORS[0], x: ids, y: ids.map(id => mean(key, id)) }]);
  }
  main.append(sampleTable(rows, run));
}

// --- one sample ---------------------------------------------------------------------------

const SHADES = {
  "log-prob": { of: t => t.rollout_log_probs, color: v => heat(Math.min(-v / 4, 1)), text: "likely to unlikely" },
  advantage: { of: t => t.advantages, color: (v, most) => signed(v / (most || 1)), text: "negative to positive" },
  mask: { of: t => t.loss_mask, color: v => v ? "#b2f2bb" : "#ced4da", text: "trained or not" },
  version: { of: t => t.weight_versions, color: v => COLORS[v % COLORS.length] + "66", text: "version of the weights" },
};

function heat(x) {
  return "hsl(" + Math.round(120 - 120 * x) + " 70% 82%)";
}

function signed(x) {
  const a = Math.min(Math.abs(x), 1);
  return "hsl(" + (x >= 0 ? 130 : 5) + " 70% " + Math.round(96 - 30 * a) + "%)";
}

function tokenSpan(t, i, shade, most) {
  const k = i - t.response_offset, text = t.token_text ? t.token_text[i] : t.token_ids[i] + " ";
  const get = name => t[name] && k >= 0 ? t[name][k] : null;
  const value = k >= 0 && shade.of(t) ? shade.of(t)[k] : null;
  const span = h("span", { class: k < 0 ? "prompt" : "other", title: "token " + (t.start + i) + ", id " + t.token_ids[i] +
    (k < 0 ? ", prompt" : ", log-prob " + short(get("rollout_log_probs")) + ", advantage " + short(get("advantages")) +
      ", mask " + (get("loss_mask") ?? "-") + ", version " + (get("weight_versions") ?? "-")) }, text);
  span.style.background = k < 0 ? "" : value === null ? "#e9ecef" : shade.color(value, most);
  return span;
}

const TOKENS_AT_ONCE = 2000;

async function showSample(main, words) {
  const [rollout, index, set] = words, run = state.focus();
  const base = "/api/rollout/" + rollout + "/sample/" + index, how = { run, eval: set ? 1 : undefined, set };
  const s = await ask(base + "/messages", how);
  const step = by => {
    location.hash = "#/sample/" + rollout + "/" + (Number(index) + by) + (set ? "/" + encodeURIComponent(set) : "");
  };
  main.append(h("h2", null, "Sample " + index + " of rollout " + rollout),
    h("div", { class: "bar" },
      h("button", { type: "button", onclick: () => step(-1) }, "previous (p)"),
      h("button", { type: "button", onclick: () => step(1) }, "next (n)"),
      h("span", null, "reward " + short(s.reward)), h("span", null, s.status), h("span", null, s.response_length + " tokens"),
      set ? null : h("a", { href: "#/group/" + rollout + "/" + s.group_index }, "group " + s.group_index),
      s.row >= 0 ? h("a", { href: "#/prompt/" + s.row }, "this prompt in all rollouts") : null),
    s.label ? h("p", null, "label: ", h("code", null, s.label)) : null);
  state.keys = { n: () => step(1), p: () => step(-1) };
  const talk = h("div", { id: "conversation" }, h("h2", null, "Conversation"), s.messages.map(m =>
    h("div", { class: "turn " + (/^[a-z]+$/.test(m.role) ? m.role : "") }, h("div", { class: "role" }, m.role || "text"),
      h("pre", null, m.content))));
  const right = h("div", null), select = h("select", { id: "shade", "aria-label": "Colour of tokens" },
    Object.keys(SHADES).map(k => h("option", null, k))), box = h("div", { class: "tokens", id: "tokens" });
  const note = h("span", { class: "dim" }), more = h("button", { type: "button", hidden: true }, "more tokens");
  const parts = [];
  function draw() {
    const shade = SHADES[select.value];
    const most = Math.max(...parts.flatMap(t => (shade.of(t) || []).map(v => Math.abs(v || 0))), 0);
    note.textContent = parts.every(t => !shade.of(t)) ? "not recorded" : shade.text;
    box.replaceChildren(...parts.flatMap(t => t.token_ids.map((_, i) => tokenSpan(t, i, shade, most))));
  }
  async function load() {
    const start = parts.length ? parts.at(-1).end : 0;
    const t = await ask(base + "/tokens", { ...how, start, end: start + TOKENS_AT_ONCE });
    parts.push(t);
    more.hidden = t.end >= t.total_len;
    draw();
  }
  select.addEventListener("change", draw);
  more.addEventListener("click", load);
  right.append(h("h2", null, "Tokens"), h("div", { class: "bar" }, h("label", null, "colour: ", select), note), box, more);
  main.append(h("div", { class: "split" }, talk, right));
  try {
    await load();
  } catch (e) {
    box.append("no tokens: " + e.message);
  }
}

// --- search -------------------------------------------------------------------------------

async function showSearch(main, words, query) {
  const run = state.focus(), meta = await ask("/api/meta", { run });
  const field = (name, label, type) => h("label", null, label + " ",
    h("input", { name, type: type || "text", value: query.get(name) || "", step: "any", size: type ? 8 : 24 }));
  const form = h("form", { class: "bar", id: "search" }, field("q", "text"), field("rollout", "rollout", "number"),
    field("min_reward", "reward from", "number"), field("max_reward", "to", "number"),
    h("label", null, "status ", h("select", { name: "status" }, ["", "completed", "truncated", "aborted", "failed"].map(s =>
      h("option", { value: s, selected: query.get("status") === s }, s || "any")))),
    h("label", null, "in ", h("select", { name: "set" }, h("option", { value: "" }, "rollouts"), meta.eval_sets.map(s =>
      h("option", { value: s, selected: query.get("set") === s }, "evaluations of " + s)))),
    h("button", null, "Search"));
  form.addEventListener("submit", e => {
    e.preventDefault();
    const p = new URLSearchParams([...new FormData(form)].filter(([, v]) => v !== ""));
    p.set("go", "1");
    const to = "#/search?" + p;
    if (to === location.hash) render(); else location.hash = to;
  });
  const found = h("div", { id: "found" }), note = h("p", { class: "dim", role: "status" });
  main.append(h("h2", null, "Search the samples of " + run), form, note, found);
  state.keys = { "/": () => form.elements.q.focus() };
  if (!query.get("go")) return;
  const how = { run, limit: 200 }, rows = [];
  for (const k of ["q", "rollout", "min_reward", "max_reward", "status", "set"]) how[k] = query.get(k) || undefined;
  if (how.set) how.eval = 1;
  // The server answers in pieces, so that it stays responsive; each names where to go on.
  const turn = state.turn;
  let after, last = "";
  do {
    const page = await ask("/api/samples", { ...how, after });
    if (turn !== state.turn) return;
    rows.push(...page.rows);
    after = page.next;
    last = after ? after.split(",")[0] : "";
    note.textContent = rows.length + " samples found" + (after ? ", searching rollout " + last : "");
    if (page.rows.length) found.replaceChildren(sampleTable(rows, run));
  } while (after && rows.length < 200);
  note.textContent = rows.length + " samples found" + (after ? "; there may be more: narrow the search" : "");
}
