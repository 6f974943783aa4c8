// All cells of a large run: unpacked when the reader comes to them, and shown a page at a time.
(() => {
  const $ = (id) => document.getElementById(id);
  const PAGE = 100;
  const KEYS = ["status", "verdict", "op", "dtype", "backend"];
  const [table, query, controls] = [$("every-table"), $("every-q"), $("every-controls")];
  let cells = null;
  let fitting = null;
  let page = 0;
  let waiting = 0;

  const unpack = async () => {
    const bytes = Uint8Array.from(atob($("every-data").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const buffer = await new Response(stream).arrayBuffer();
    let at = 4 + new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, at - 4)));
    const column = (Type, n) => {
      const size = n * Type.BYTES_PER_ELEMENT;
      const found = new Type(buffer.slice(at, at + size));
      at += size;
      return found;
    };
    const found = { head, case: column(Uint32Array, head.n), ratio: column(Uint16Array, head.n) };
    for (const name of ["dtype", "backend", "status", "verdict"]) found[name] = column(Uint8Array, head.n);
    found.opOf = column(Uint16Array, head.cases);
    found.ids = new TextDecoder().decode(new Uint8Array(buffer, at)).split("\n");
    return found;
  };

  const ratio = (upper) => {
    if (upper === 0xffff) return "";
    const value = new Float32Array(new Uint32Array([upper << 16]).buffer)[0];
    return value === Infinity ? "∞" : String(Number(value.toPrecision(3)));
  };

  const label = (key, number) => (key === "status" ? cells.head.labels[number] : cells.head.names[key][number]);
  const numberOf = (key, row) => (key === "op" ? cells.opOf[cells.case[row]] : cells[key][row]);

  const filter = () => {
    clearTimeout(waiting);
    const wanted = KEYS.map((key) => [key, $(`every-${key}`).value]).filter(([, value]) => value).map(([key, value]) => [key, Number(value)]);
    const words = query.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const named = words.length ? cells.ids.map((id) => words.every((word) => id.toLowerCase().includes(word))) : null;
    const found = new Uint32Array(cells.head.n);
    let n = 0;
    for (let row = 0; row < cells.head.n; row += 1) {
      if (named && !named[cells.case[row]]) continue;
      if (wanted.every(([key, number]) => numberOf(key, row) === number)) found[n++] = row;
    }
    fitting = found.subarray(0, n);
    show(0);
  };

  const show = (number) => {
    const n = fitting.length;
    const last = Math.max(Math.ceil(n / PAGE) - 1, 0);
    page = Math.min(Math.max(number, 0), last);
    const rows = [...fitting.subarray(page * PAGE, (page + 1) * PAGE)].map((row) => {
      const line = document.createElement("tr");
      line.className = cells.head.names.status[cells.status[row]];
      const texts = [label("status", cells.status[row]), label("verdict", cells.verdict[row]), cells.ids[cells.case[row]],
        label("op", numberOf("op", row)), label("dtype", cells.dtype[row]), label("backend", cells.backend[row]), ratio(cells.ratio[row])];
      texts.forEach((text) => { line.insertCell().textContent = text; });
      return line;
    });
    table.tBodies[0].replaceChildren(...rows);
    table.hidden = !n;
    $("every-pages").hidden = last === 0;
    for (const [id, off] of [["first", page === 0], ["previous", page === 0], ["next", page === last], ["last", page === last]]) $(`every-${id}`).disabled = off;
    $("every-shown").textContent = n ? `${page * PAGE + 1} to ${Math.min((page + 1) * PAGE, n)} of ${n} cells` : "No such cell.";
  };

  const select = (key) => {
    const element = document.createElement("select");
    element.id = `every-${key}`;
    element.append(new Option("all", ""), ...cells.head.names[key].map((name, i) => new Option(label(key, i), String(i))));
    element.addEventListener("change", filter);
    const around = document.createElement("label");
    around.append(`${key} `, element);
    return around;
  };

  const start = async () => {
    try {
      cells = await unpack();
    } catch (error) {
      $("every-shown").textContent = `The cells cannot be unpacked (${error.message}); parity query has them.`;
      return;
    }
    $("every-selects").append(...KEYS.map(select));
    query.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 150); });
    controls.addEventListener("submit", (event) => event.preventDefault());
    for (const [id, to] of [["first", () => 0], ["previous", () => page - 1], ["next", () => page + 1], ["last", () => Infinity]]) {
      $(`every-${id}`).addEventListener("click", () => show(to()));
    }
    controls.hidden = false;
    filter();
  };

  new IntersectionObserver((seen, observer) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    start();
  }, { rootMargin: "200px" }).observe($("every-shown"));
})();
