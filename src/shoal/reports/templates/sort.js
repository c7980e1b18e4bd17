// Lets a click on a head sort its table: numbers from the largest, text from A; once more turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button"), numbers = head.classList.contains("number");
    const key = row => numbers ? row.cells[column].dataset.value : row.cells[column].textContent;
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const now = head.getAttribute("aria-sort");
      const up = now ? now === "descending" : !numbers, sign = up ? 1 : -1;
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = (a, b) => numbers ? a - b : a.localeCompare(b);
      // What is undefined stays at the end.
      const compare = (a, b) => (a === "") - (b === "") || sign * order(a, b);
      body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
    };
  });
}
