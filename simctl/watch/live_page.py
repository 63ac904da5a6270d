"""The live page: seen latency beside its predicted interval, drawn in the browser from /history.json."""

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>simctl watch</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; background: #fff; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 1.5rem 0 0.3rem; }
#advice { font-size: 1.1rem; padding: 0.7rem 1rem; border-left: 4px solid #3a6ea5; background: #f1f5fa; margin: 1rem 0; }
#advice.bad { border-color: #b3423a; background: #fbf1f0; }
svg { width: 100%; height: auto; } .band { fill: #3a6ea5; opacity: 0.2; } .line { fill: none; stroke: #1c2430; stroke-width: 2; }
.out { fill: #b3423a; } text { font-size: 12px; fill: #5a6573; } .axis { stroke: #cfd6de; }
ul { padding-left: 1.2rem; color: #b3423a; }
</style>
<h1>Servers beside their twin</h1>
<p id="advice" role="status">Waiting for the first windows.</p><ul id="alerts"></ul><div id="charts"></div>
<p>Band: 90 % interval predicted before the window. Line: median of the window, as exact as the server's histogram.
Red: outside.</p>
<script>
const W = 900, H = 180, L = 60, B = 24;
function chart(title, rows) {
  const high = Math.max(...rows.map(r => Math.max(r.seen, r.high))) * 1.1 || 1;
  const t0 = rows[0].t, t1 = Math.max(rows[rows.length - 1].t, t0 + 1);
  const x = t => L + (W - L - 8) * (t - t0) / (t1 - t0), y = v => (H - B) * (1 - v / high) + 4;
  const path = rows.map((r, i) => (i ? "L" : "M") + x(r.t).toFixed(1) + " " + y(r.seen).toFixed(1)).join("");
  const band = rows.map((r, i) => (i ? "L" : "M") + x(r.t).toFixed(1) + " " + y(r.high).toFixed(1)).join("")
    + rows.slice().reverse().map(r => "L" + x(r.t).toFixed(1) + " " + y(r.low).toFixed(1)).join("") + "Z";
  const dots = rows.filter(r => !r.inside).map(r => `<circle class="out" cx="${x(r.t)}" cy="${y(r.seen)}" r="4"/>`).join("");
  const ticks = [0, 0.5, 1].map(s => `<line class="axis" x1="${L}" x2="${W}" y1="${y(s * high / 1.1)}" y2="${y(s * high / 1.1)}"/>`
    + `<text x="${L - 6}" y="${y(s * high / 1.1) + 4}" text-anchor="end">${(s * high / 1.1).toPrecision(3)}</text>`).join("");
  const ends = `<text x="${L}" y="${H - 4}">0 min</text>`
    + `<text x="${W - 8}" y="${H - 4}" text-anchor="end">${((t1 - t0) / 60).toFixed(1)} min</text>`;
  const figure = document.createElement("figure"); figure.style.margin = 0;
  const head = document.createElement("h2"); head.textContent = title; figure.append(head);
  figure.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 ${W} ${H}" role="img"><title></title>${ticks}<path class="band" d="${band}"/>`
    + `<path class="line" d="${path}"/>${dots}${ends}</svg>`);
  figure.querySelector("title").textContent = title;
  return figure;
}
async function show() {
  try {
    const body = await (await fetch("/history.json")).json(), charts = document.getElementById("charts");
    const advice = document.getElementById("advice");
    advice.textContent = body.advice; advice.className = body.chance > 0.5 ? "bad" : "";
    document.getElementById("alerts").replaceChildren(...body.alerts.map(text => {
      const item = document.createElement("li"); item.textContent = text; return item; }));
    const found = {};
    for (const w of body.windows) for (const [url, rows] of Object.entries(w.seen)) for (const r of rows)
      (found[`${r.metric.toUpperCase()} in ms, ${url}`] ||= []).push(
        { t: w.at_s, seen: r.median_ms, low: r.predicted_ms[0], high: r.predicted_ms[1], inside: r.inside });
    charts.replaceChildren(...Object.entries(found).map(([title, rows]) => chart(title, rows)));
  } catch (error) { document.getElementById("advice").textContent = "simctl watch has ended."; }
}
show(); setInterval(show, 3000);
</script>
</html>
"""
