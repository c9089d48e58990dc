"use strict";
// The phases of each process over time.

const PHASE_COLORS = {
  iteration: "#adb5bd", rollout: "#2f6fde", learn: "#2b8a3e", log_probs: "#74b816", actor_train: "#2b8a3e",
  save: "#846358", rest: "#868e96", update_weights: "#d9480f", eval: "#9c36b5",
};

async function showTimeline(main) {
  const run = state.focus(), [phases, bubbles] = await Promise.all([
    ask("/api/timeline/phases", { run }), ask("/api/timeline/bubbles", { run })]);
  const list = phases.phases, view = { from: null, to: null };
  const canvas = h("canvas", { tabindex: "0", role: "img",
    "aria-label": list.length + " phases of " + new Set(list.map(p => p.node)).size + " processes" });
  const tip = h("div", { class: "tip" });
  const names = [...new Set(list.map(p => p.name))];
  const legend = h("div", { class: "bar", id: "legend" }, names.map(n => {
    const s = h("span", { class: "swatch" });
    s.style.background = PHASE_COLORS[n] || "#c2255c";
    return h("span", null, s, " " + n);
  }));
  const waits = bubbles.bubbles.filter(b => b.wait_ratio !== null);
  const wait = waits.length ? waits.reduce((a, b) => a + b.wait_ratio, 0) / waits.length : null;
  main.append(h("h2", null, "Timeline of " + run), legend,
    h("section", { class: "card" }, canvas, tip),
    h("p", { class: "dim" }, "Drag to zoom, double-click or Escape to see all; + and - zoom, arrows move. " +
      (wait === null ? "" : "Waiting for samples: " + Math.round(100 * wait) + " % of a rollout on average.")));
  if (!list.length) main.append(h("p", null, "The run has recorded no phases."));
  const lanes = [...new Set(list.map(p => p.node))];
  const first = list.reduce((a, p) => Math.min(a, p.t0), Infinity);
  const last = list.reduce((a, p) => Math.max(a, p.t1), -Infinity);
  // The last rollouts are what one wants to see of a long run.
  const recent = list.filter(p => p.name === "iteration").slice(-12);
  view.from = recent.length ? recent[0].t0 : first;
  view.to = last;
  const laneHeight = 46, left = 62;

  function place(t) {
    return left + (t - view.from) / (view.to - view.from || 1) * (canvas.clientWidth - left - 8);
  }
  function timeAt(x) {
    return view.from + (x - left) / (canvas.clientWidth - left - 8) * (view.to - view.from);
  }
  function depth(p) {
    return p.name === "iteration" ? 0 : p.name === "log_probs" || p.name === "actor_train" ? 2 : 1;
  }
  function draw() {
    const scale = window.devicePixelRatio || 1, height = lanes.length * laneHeight + 22;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    g.font = "11px system-ui, sans-serif";
    g.fillStyle = css("--dim");
    lanes.forEach((n, i) => g.fillText(n, 4, i * laneHeight + 24));
    for (const t of ticks(view.from - first, view.to - first, 6))
      g.fillText(t.toFixed(view.to - view.from < 10 ? 2 : 0) + " s", place(t + first), height - 5);
    for (const p of list) {
      const a = Math.max(place(p.t0), left), b = Math.min(place(p.t1), canvas.clientWidth - 8);
      if (b < a) continue;
      g.fillStyle = PHASE_COLORS[p.name] || "#c2255c";
      g.fillRect(a, lanes.indexOf(p.node) * laneHeight + 4 + depth(p) * 13, Math.max(b - a, 1), 12);
    }
  }
  function zoom(a, b) {
    view.from = a;
    view.to = b;
    draw();
  }
  let down = null;
  canvas.addEventListener("pointerdown", e => { down = e.offsetX; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", e => {
    if (down !== null && Math.abs(e.offsetX - down) > 5)
      zoom(timeAt(Math.min(down, e.offsetX)), timeAt(Math.max(down, e.offsetX)));
    down = null;
  });
  canvas.addEventListener("dblclick", () => zoom(first, last));
  canvas.addEventListener("keydown", e => {
    const w = view.to - view.from;
    if (e.key === "Escape") zoom(first, last);
    else if (e.key === "+") zoom(view.from + w / 4, view.to - w / 4);
    else if (e.key === "-") zoom(view.from - w / 2, view.to + w / 2);
    else if (e.key === "ArrowLeft") zoom(view.from - w / 4, view.to - w / 4);
    else if (e.key === "ArrowRight") zoom(view.from + w / 4, view.to + w / 4);
    else return;
    e.preventDefault();
  });
  canvas.addEventListener("pointermove", e => {
    const t = timeAt(e.offsetX), lane = lanes[Math.floor(e.offsetY / laneHeight)];
    const over = list.filter(p => p.node === lane && p.t0 <= t && p.t1 >= t && depth(p) > 0);
    tip.textContent = over.map(p => "rollout " + p.rollout + ", " + p.name + ": " +
      (p.t1 - p.t0).toFixed(2) + " s").join("; ");
  });
  if (list.length) draw();
  window.onresize = () => { if (list.length && canvas.isConnected) draw(); };
}
