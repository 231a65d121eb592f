// The time line as a table whose middle column draws it.

import { make } from "./dom.js";
import { duration } from "./format.js";
import { layout } from "./timeline.js";

const LEGEND = { language: "language service", encoder: "encoder", wire: "wire", engine: "engine" };

/** The element that shows `timings`. */
export function chart(timings) {
  const { rows, total } = layout(timings);
  const groups = new Set(rows.map((row) => row.group));
  const legend = Object.entries(LEGEND).filter(([group]) => groups.has(group))
    .flatMap(([group, words]) => [make("i", { class: `bar-${group}`, "aria-hidden": "true" }), words]);
  const head = make("thead", { class: "hidden" }, make("tr", {}, ...["Stage", "Begin and length", "Time"].map(
    (title) => make("th", { scope: "col" }, title))));
  return make(
    "table",
    { class: "line" },
    make("caption", { class: "legend" }, ...legend, ` · ${duration(total)} in all`),
    head,
    make("tbody", {}, ...rows.map((row) => (row.title ? itemRow(row) : stageRow(row, total)))),
  );
}

function itemRow(row) {
  return make("tr", { class: "item" }, make("th", { colspan: "3", scope: "rowgroup" }, row.title));
}

function stageRow(row, total) {
  const bar = make("span", { class: `bar-${row.group}` });
  // Not as an attribute, which the page's security policy forbids.
  bar.style.left = `${(100 * row.start) / (total || 1)}%`;
  bar.style.width = `${(100 * row.seconds) / (total || 1)}%`;
  const name = make("th", { scope: "row", class: row.inner ? "inner" : null }, row.stage);
  const track = make("td", {}, make("div", { class: "track", title: `begins at ${duration(row.start)}` }, bar));
  return make("tr", { "data-stage": row.stage, "data-group": row.group }, name, track, make("td", { class: "time" }, duration(row.seconds)));
}
