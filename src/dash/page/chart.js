"use strict";
// Line charts on a canvas: several series, smoothing, a cursor, zoom by dragging or by keys.

const COLORS = ["#2f6fde", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#846358", "#5f3dc4"];

// Builds an element.  Text only ever becomes text: no markup is parsed anywhere in the page.
function h(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "class") e.className = v;
    else if (v === true) e.setAttribute(k, "");
    else if (v !== false && v !== null && v !== undefined) e.setAttribute(k, v);
  }
  for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c);
  return e;
}

function short(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "-";
  const a = Math.abs(x);
  if (a >= 1e9) return (x / 1e9).toPrecision(3) + "G";
  if (a >= 1e6) return (x / 1e6).toPrecision(3) + "M";
  if (a >= 1e4) return (x / 1e3).toPrecision(3) + "k";
  if (a !== 0 && a < 1e-3) return x.toExponential(2);
  return String(Number(x.toPrecision(4)));
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Exponential moving average, corrected for its start; weight 0 leaves the values.
function smooth(y, weight) {
  let mean = 0, norm = 0;
  return y.map(v => {
    if (v === null) return null;
    mean = weight * mean + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

function ticks(low, high, n) {
  const raw = (high - low) / n, unit = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(k => k * unit).find(k => k >= raw) || unit;
  const out = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) out.push(t);
  return out;
}

// options.zoom: {from, to} shared by charts; options.onzoom(from, to): null resets.
class Chart {
  constructor(title, options) {
    this.options = options;
    this.series = [];
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.tip = h("div", { class: "tip" });
    this.root = h("section", { class: "card" }, h("h3", null, title), this.canvas, this.tip);
    this.title = title;
    this.height = options.height || 170;
    this.drag = null;
    this.canvas.addEventListener("pointermove", e => this.move(e));
    this.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
    this.canvas.addEventListener("pointerdown", e => {
      this.drag = e.offsetX;
      this.canvas.setPointerCapture(e.pointerId);
    });
    this.canvas.addEventListener("pointerup", e => this.drop(e));
    this.canvas.addEventListener("dblclick", () => options.onzoom(null));
    this.canvas.addEventListener("keydown", e => this.key(e));
  }

  // series: [{name, color, x, y}]
  set(series) {
    this.series = series;
    const last = series.map(s => s.name + " " + short(s.y[s.y.length - 1])).join(", ");
    this.canvas.setAttribute("aria-label", this.title + ": " + last);
    this.draw();
  }

  range() {
    const z = this.options.zoom();
    let low = Infinity, high = -Infinity, bottom = Infinity, top = -Infinity;
    for (const s of this.series)
      for (let i = 0; i < s.x.length; i++) {
        low = Math.min(low, s.x[i]);
        high = Math.max(high, s.x[i]);
      }
    if (z) { low = z.from; high = z.to; }
    for (const s of this.series)
      for (let i = 0; i < s.x.length; i++) {
        if (s.y[i] === null || s.x[i] < low || s.x[i] > high) continue;
        bottom = Math.min(bottom, s.y[i]);
        top = Math.max(top, s.y[i]);
      }
    if (!(low <= high)) { low = 0; high = 1; }
    if (low === high) { low -= 0.5; high += 0.5; }
    if (!(bottom <= top)) { bottom = 0; top = 1; }
    const room = (top - bottom) * 0.06 || Math.abs(top) * 0.1 || 0.5;
    return { low, high, bottom: bottom - room, top: top + room };
  }

  frame() {
    const w = this.canvas.clientWidth || 330;
    return { w, left: 46, right: w - 8, up: 6, down: this.height - 18 };
  }

  draw() {
    const f = this.frame(), scale = window.devicePixelRatio || 1, c = this.canvas;
    c.width = f.w * scale;
    c.height = this.height * scale;
    c.style.height = this.height + "px";
    const g = c.getContext("2d"), r = this.range();
    g.scale(scale, scale);
    const px = x => f.left + (x - r.low) / (r.high - r.low) * (f.right - f.left);
    const py = y => f.down - (y - r.bottom) / (r.top - r.bottom) * (f.down - f.up);
    this.px = px;
    this.r = r;
    g.font = "11px system-ui, sans-serif";
    g.strokeStyle = css("--line");
    g.fillStyle = css("--dim");
    g.lineWidth = 1;
    for (const t of ticks(r.bottom, r.top, 4)) {
      g.beginPath(); g.moveTo(f.left, py(t)); g.lineTo(f.right, py(t)); g.stroke();
      g.textAlign = "right";
      g.fillText(short(t), f.left - 5, py(t) + 4);
    }
    g.textAlign = "center";
    for (const t of ticks(r.low, r.high, 5)) g.fillText(short(t), px(t), this.height - 4);
    g.save();
    g.beginPath(); g.rect(f.left, 0, f.right - f.left, this.height); g.clip();
    const weight = this.options.smoothing();
    for (const s of this.series) {
      if (weight > 0) this.line(g, s.x, s.y, px, py, s.color, 0.25);
      this.line(g, s.x, smooth(s.y, weight), px, py, s.color, 1);
    }
    g.restore();
    if (this.cursor !== null && this.cursor !== undefined) {
      g.strokeStyle = css("--dim");
      g.beginPath(); g.moveTo(this.cursor, f.up); g.lineTo(this.cursor, f.down); g.stroke();
      if (this.drag !== null) {
        g.globalAlpha = 0.15;
        g.fillRect(Math.min(this.drag, this.cursor), f.up, Math.abs(this.cursor - this.drag), f.down - f.up);
        g.globalAlpha = 1;
      }
    }
  }

  line(g, x, y, px, py, color, alpha) {
    g.globalAlpha = alpha;
    g.strokeStyle = g.fillStyle = color;
    g.lineWidth = 1.6;
    g.beginPath();
    let on = false;
    for (let i = 0; i < x.length; i++) {
      if (y[i] === null) { on = false; continue; }
      if (on) g.lineTo(px(x[i]), py(y[i])); else g.moveTo(px(x[i]), py(y[i]));
      on = true;
    }
    g.stroke();
    if (x.length < 40)
      for (let i = 0; i < x.length; i++)
        if (y[i] !== null) { g.beginPath(); g.arc(px(x[i]), py(y[i]), 2, 0, 7); g.fill(); }
    g.globalAlpha = 1;
  }

  at(offset) {
    const f = this.frame();
    return this.r.low + (offset - f.left) / (f.right - f.left) * (this.r.high - this.r.low);
  }

  move(e) {
    this.cursor = e.offsetX;
    const x = this.at(e.offsetX), parts = [];
    let place = null;
    for (const s of this.series) {
      let best = -1;
      for (let i = 0; i < s.x.length; i++)
        if (best < 0 || Math.abs(s.x[i] - x) < Math.abs(s.x[best] - x)) best = i;
      if (best >= 0) { place = s.x[best]; parts.push(s.name + " " + short(s.y[best])); }
    }
    this.tip.textContent = place === null ? "" : "at " + place + ": " + parts.join(", ");
    this.draw();
  }

  drop(e) {
    const from = this.at(Math.min(this.drag, e.offsetX)), to = this.at(Math.max(this.drag, e.offsetX));
    const wide = Math.abs(e.offsetX - this.drag) > 5;
    this.drag = null;
    if (wide) this.options.onzoom({ from, to });
    else if (this.options.onpick) this.options.onpick(this.at(e.offsetX));
  }

  key(e) {
    const r = this.r, width = r.high - r.low, to = (a, b) => this.options.onzoom({ from: a, to: b });
    if (e.key === "Escape") this.options.onzoom(null);
    else if (e.key === "+") to(r.low + width / 4, r.high - width / 4);
    else if (e.key === "-") to(r.low - width / 2, r.high + width / 2);
    else if (e.key === "ArrowLeft") to(r.low - width / 4, r.high - width / 4);
    else if (e.key === "ArrowRight") to(r.low + width / 4, r.high + width / 4);
    else return;
    e.preventDefault();
  }
}
