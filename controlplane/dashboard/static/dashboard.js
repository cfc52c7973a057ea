// What the pages need beyond htmx: slot bars that follow the live state, charts, theme, copying.

const BARS_EVERY_MS = 1000;
const HISTORY_EVERY_MS = 4000;
const CHART_MS = 15 * 60 * 1000;

/** JSON from a page of ours; a session that has ended leads to the login. */
async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (answer.status === 401) location.reload();
  return answer.ok ? answer.json() : null;
}

/** Call `step` again and again while the page is seen; one that fails is tried again. */
function follow(step, everyMs) {
  const turn = async () => {
    if (!document.hidden) await step().catch(() => null);
    setTimeout(turn, everyMs);
  };
  setTimeout(turn, everyMs);
}

// --- Slot bars --------------------------------------------------------------------------------

/** Give a bar the cells it has now, touching only those that differ. */
function patch(bar, cells) {
  while (bar.children.length > cells.length) bar.lastElementChild.remove();
  while (bar.children.length < cells.length) bar.append(document.createElement("i"));
  cells.forEach((cell, index) => {
    if (bar.children[index].className !== cell) bar.children[index].className = cell;
  });
}

async function followBars() {
  if (!document.querySelector("[data-bar]")) return;
  const state = await ask(`/fairshare/bars${location.search}`);
  const pools = new Map((state?.pools ?? []).map((pool) => [pool.model, pool]));
  for (const bar of document.querySelectorAll("[data-bar]")) {
    const pool = pools.get(bar.dataset.bar);
    if (pool) patch(bar, pool.cells);
  }
  for (const place of document.querySelectorAll("[data-pool]")) {
    const figures = pools.get(place.dataset.pool)?.figures ?? {};
    for (const figure of place.querySelectorAll("[data-shown]")) {
      const text = figures[figure.dataset.shown];
      if (text !== undefined && figure.textContent !== text) figure.textContent = text;
    }
  }
}

// --- Charts -----------------------------------------------------------------------------------

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A colour of the style sheet as a canvas takes it: a `light-dark()` pair resolved. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = style(name);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** In UTC, as every time on the pages. */
const clock = (secs) => new Date(secs * 1000).toISOString().slice(11, 19);

function axis(extra) {
  return {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
    ...extra,
  };
}

/** A chart of whole numbers over time. `lines`: {label, colour, values, dash, fill}. */
function draw(place, times, lines) {
  const old = place.chart;
  const shape = JSON.stringify([lines.map((line) => [line.label, line.colour]), colour("--line")]);
  const data = [times, ...lines.map((line) => line.values)];
  if (old && place.dataset.shape === shape) return old.setData(data);
  old?.destroy();
  place.dataset.shape = shape;
  place.chart = new uPlot(
    {
      width: place.clientWidth,
      height: 170,
      cursor: { y: false },
      scales: { y: { range: (_, __, most) => [0, Math.max(1, Math.ceil(most * 1.1))] } },
      axes: [axis({ space: 90, size: 26, values: (_, secs) => secs.map(clock) }), axis({ size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000] })],
      series: [
        { label: "at (UTC)", value: (_, secs) => (secs === null ? "–" : clock(secs)) },
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: 2,
          dash: line.dash,
          points: { show: false },
          paths: uPlot.paths.stepped({ align: 1 }),
        })),
      ],
    },
    data,
    place,
  );
}

async function followHistory() {
  const running = document.getElementById("chart-running");
  if (!running) return;
  const since = Date.now() - CHART_MS;
  const query = new URLSearchParams({ model: running.dataset.history, since_ms: since });
  const replica = new URLSearchParams(location.search).get("replica");
  if (replica) query.set("replica", replica);
  const history = await ask(`/fairshare/history?${query}`);
  const note = document.getElementById("history-note");
  const isEmpty = !history?.points.length;
  for (const place of document.querySelectorAll(".chart")) place.hidden = isEmpty;
  if (isEmpty) {
    const off = history?.retention_ms === 0;
    note.textContent =
      history?.problem ?? (off ? "History is switched off." : "No history yet for this pool.");
    return;
  }
  note.textContent = "";
  document.getElementById("history-of").textContent = `of ${history.instance}`;
  const points = history.points;
  const times = points.map((point) => point.ts_ms / 1000);
  const groups = history.colours.map(([name, index]) => ({
    label: name,
    colour: colour(`--g${index}`),
    values: points.map((point) => point.groups[name] ?? 0),
  }));
  draw(running, times, groups);
  draw(document.getElementById("chart-waiting"), times, [
    { label: "waiting", colour: colour("--warn"), values: points.map((point) => point.queued) },
    { label: "held", colour: colour("--muted"), values: points.map((point) => point.held), dash: [4, 4] },
  ]);
}

addEventListener("resize", () => {
  for (const place of document.querySelectorAll(".chart")) {
    place.chart?.setSize({ width: place.clientWidth, height: 170 });
  }
});

// --- Theme, copying, notices ------------------------------------------------------------------

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `obleth_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
  followHistory();
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  const label = button.querySelector("span");
  try {
    await navigator.clipboard.writeText(source.textContent);
    label.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    label.textContent = "Selected: press Ctrl+C";
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-theme-switch], [data-copy]");
  if (button?.dataset.copy) copy(button);
  else if (button) switchTheme();
});

const address = new URL(location.href);
if (address.searchParams.has("notice")) {
  // Said once: not again when the page is loaded anew.
  address.searchParams.delete("notice");
  history.replaceState(null, "", address);
}

follow(followBars, BARS_EVERY_MS);
if (document.getElementById("chart-running")) {
  followHistory();
  follow(followHistory, HISTORY_EVERY_MS);
}
