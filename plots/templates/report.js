// Sorting by a column and filtering by words; without it the tables stand as they are.
"use strict";
const keyOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  if (cell.dataset.key !== undefined) return cell.dataset.key;
  if (text === "–") return undefined;
  return cell.classList.contains("number") ? String(parseFloat(text)) : text;
};
const compare = (a, b) => {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
};
const sortBy = (header) => {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const column = header.cellIndex;
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const rows = [...body.rows];
  const known = rows.filter((row) => keyOf(row, column) !== undefined);
  const unknown = rows.filter((row) => keyOf(row, column) === undefined); // last, whatever the direction
  known.sort((a, b) => direction * compare(keyOf(a, column), keyOf(b, column)));
  body.append(...known, ...unknown);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
};
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
for (const input of document.querySelectorAll("input[type=search]")) {
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.getElementById(input.dataset.table).tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
