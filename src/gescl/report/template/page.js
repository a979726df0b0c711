"use strict";

// Tables sort by a click on a heading, or Enter or Space on its button; what is unknown stays last.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", direction);
      const sign = direction === "ascending" ? 1 : -1;
      const body = table.tBodies[0];
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (Number(x) - Number(y) || x.localeCompare(y, undefined, { numeric: true }));
      });
      body.append(...rows);
    });
  });
}

for (const button of document.querySelectorAll("[data-fold]")) {
  button.addEventListener("click", () => {
    for (const part of document.querySelectorAll("main details:not(.runs, .runs *)")) part.open = button.dataset.fold === "open";
  });
}

// A link to a folded part unfolds it; paper shows everything.
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("main details:not(.runs, .runs *)")) part.open = true;
});
