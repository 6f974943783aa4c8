"use strict";
// The page is complete without this; here it learns to filter, sort, fold and be used from the keyboard.
(() => {
  const $ = (id) => document.getElementById(id);
  const COLUMNS = ["status", "verdict", "case", "op", "dtype", "backend", "tensors", "excess", "ratio", "cause"];
  const NUMBERS = new Set(["excess", "ratio"]);
  const MOST = 1000; // rows that a browser lays out at once without a pause
  const table = $("table");
  const body = table.tBodies[0];
  const [controls, query, passing, shown, empty, unfold] = ["controls", "q", "passing", "shown", "empty", "unfold"].map($);
  const chips = [...document.querySelectorAll("[data-status]")];
  const selects = [...document.querySelectorAll("[data-key]")];
  const headers = [...table.tHead.rows[0].cells];

  const rows = [...body.rows].map((row, index) => {
    const texts = [...row.cells].map((cell) => cell.textContent.trim());
    const found = { row, index, status: row.className, text: texts.join("\n").toLowerCase() };
    COLUMNS.slice(1).forEach((name, i) => (found[name] = texts[i + 1] ?? ""));
        return found;
  });
  let order = rows;
  let sorted = { key: "", down: false };
  let remembering = 0;
  let limit = MOST;

  // Filtering

  const wanted = () => {
    const state = { q: query.value.trim(), sort: sorted.key ? (sorted.down ? "-" : "") + sorted.key : "" };
    state.status = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.status).join(",");
    selects.forEach((select) => (state[select.dataset.key] = select.value));
    state.passed = passing && passing.checked ? "1" : "";
    return state;
  };

  const matcher = (state) => {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = new Set(state.status ? state.status.split(",") : []);
    const exact = selects.map((select) => select.dataset.key).filter((key) => state[key]);
    return (row) =>
      (!statuses.size || statuses.has(row.status)) &&
      exact.every((key) => row[key] === state[key] || row[key].split(", ").includes(state[key])) &&
      words.every((word) => row.text.includes(word));
  };

  const apply = (remember = true) => {
    const state = wanted();
    const fits = matcher(state);
    const open = !passing || passing.checked;
    let matching = 0;
    let folded = 0;
    for (const row of order) {
      const out = !fits(row);
      const closed = row.status === "passed" && !open;
      if (!out && closed) folded += 1;
      if (!out && !closed) matching += 1;
      const hidden = out || (!closed && matching > limit);
      if (row.row.hidden !== hidden) row.row.hidden = hidden;
    }
    const visible = Math.min(matching, limit);
    const more = matching > visible ? `, ${matching - visible} more fit` : "";
    selects.forEach((select) => select.classList.toggle("set", Boolean(select.value)));
    shown.textContent = `${visible} of ${rows.length} rows shown${more}` + (folded ? `, ${folded} that passed are folded away` : "");
    empty.hidden = visible > 0;
    $("scroll").hidden = visible === 0;
    $("none").textContent = folded === rows.length ? "Everything passed." : "No such row.";
    $("more").hidden = !more;
    unfold.hidden = !folded;
    unfold.textContent = `Show what passed`;
    clearTimeout(remembering);
    if (remember) remembering = setTimeout(address, 200, state);
  };

  const address = (state) => {
    const kept = Object.entries(state).filter(([, value]) => value);
    const hash = kept.length ? `#?${new URLSearchParams(kept)}` : "#";
    if (hash === (location.hash || "#")) return;
    try {
      history.replaceState(null, "", hash);
    } catch {
      location.replace(hash);
    }
  };

  const restore = (state) => {
    query.value = state.get("q") || "";
    const statuses = (state.get("status") || "").split(",");
    chips.forEach((chip) => chip.setAttribute("aria-pressed", String(statuses.includes(chip.dataset.status))));
    selects.forEach((select) => {
      const value = state.get(select.dataset.key) || "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    });
    if (passing) passing.checked = state.get("passed") === "1" || statuses.includes("passed");
    const sort = state.get("sort") || "";
    sortBy(sort.replace(/^-/, ""), sort.startsWith("-"));
    apply(false);
  };

  const clear = () => restore(new URLSearchParams());

  // Sorting

  const number = (text) => (text === "∞" ? Infinity : text === "" ? -Infinity : Number(text));
  const words = new Intl.Collator(undefined, { numeric: true });

  const sortBy = (key, down) => {
    key = COLUMNS.includes(key) ? key : "";
    if (key === sorted.key && down === sorted.down) return;
    sorted = { key, down };
    const sign = down ? -1 : 1;
    const compare = NUMBERS.has(key)
      ? (a, b) => { const [x, y] = [number(a[key]), number(b[key])]; return x === y ? 0 : x < y ? -1 : 1; }
      : key === "status" ? (a, b) => a.index - b.index : (a, b) => words.compare(a[key], b[key]);
    order = key ? [...rows].sort((a, b) => sign * compare(a, b) || a.index - b.index) : rows;
    body.append(...order.map((row) => row.row));
    headers.forEach((header, i) => {
      header.setAttribute("aria-sort", COLUMNS[i] !== key ? "none" : down ? "descending" : "ascending");
    });
  };

  headers.forEach((header, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const key = COLUMNS[i];
      const first = NUMBERS.has(key);
      if (sorted.key !== key) sortBy(key, first);
      else if (sorted.down === first) sortBy(key, !first);
      else sortBy("", false);
      apply();
    });
  });

  // Links into the page

  // Cases are laid out when they come into view, and move what is below them: the element is brought again until the user acts.
  let bringing = null;
  const bring = (element, frames = 60) => {
    if (bringing !== element) return;
    element.scrollIntoView();
    if (frames) requestAnimationFrame(() => bring(element, frames - 1));
  };
  for (const act of ["wheel", "pointerdown", "keydown", "touchstart"]) window.addEventListener(act, () => (bringing = null), { capture: true, passive: true });

  const openAt = (element) => {
    const around = element.closest("details") || element.querySelector("details:not(.inputs)");
    if (around) around.open = true;
    if (element.matches("tr")) element.hidden = false;
    bringing = element;
    bring(element);
  };

  const follow = () => {
    clearTimeout(remembering);
    const hash = location.hash.slice(1);
    if (hash.startsWith("?")) {
      restore(new URLSearchParams(hash.slice(1)));
      if (!unfold.hidden && !empty.hidden) unfold.click();
      $("cells").scrollIntoView();
      return true;
    }
    const element = hash && $(decoded(hash));
    if (element) openAt(element);
    return false;
  };

  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  window.addEventListener("hashchange", follow);

  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a.link");
    if (!link) return;
    openAt(link.parentElement);
    try {
      await navigator.clipboard.writeText(link.href);
      $("said").textContent = "Link copied";
      link.textContent = "copied";
      setTimeout(() => (link.textContent = "#"), 1500);
    } catch {
      $("said").textContent = "The link is in the address bar";
    }
  });

  // Keyboard

  const visible = () => order.map((row) => row.row).filter((row) => row.getClientRects().length);

  const move = (step) => {
    const found = visible();
    const at = found.indexOf(document.activeElement.closest("#table tbody tr"));
    const next = found[at < 0 ? 0 : Math.min(Math.max(at + step, 0), found.length - 1)];
    if (!next) return;
    next.tabIndex = -1;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = event.target;
    const row = at.closest("#table tbody tr");
    if (event.key === "Escape" && (row || at === query || at === document.body || controls.contains(at))) {
      clear();
      apply();
      if (at === query) query.blur();
    } else if (at.matches("input[type=search], select, textarea")) {
      if (at === query && event.key === "ArrowDown") { event.preventDefault(); move(1); }
    } else if (event.key === "/") {
      event.preventDefault();
      query.focus();
      query.select();
    } else if (event.key === "j" || (row && event.key === "ArrowDown")) {
      event.preventDefault();
      move(1);
    } else if (event.key === "k" || (row && event.key === "ArrowUp")) {
      event.preventDefault();
      move(-1);
    } else if (event.key === "Enter" && at === row && row.querySelector("a")) {
      row.querySelector("a").click();
    }
  });

  // Controls

  query.addEventListener("input", () => apply());
  controls.addEventListener("submit", (event) => event.preventDefault());
  selects.forEach((select) => select.addEventListener("change", () => apply()));
  chips.forEach((chip) => chip.addEventListener("click", () => {
    const on = chip.getAttribute("aria-pressed") !== "true";
    chip.setAttribute("aria-pressed", String(on));
    if (chip.dataset.status === "passed" && passing) passing.checked = on;
    apply();
  }));
  if (passing) passing.addEventListener("change", () => apply());
  $("clear").addEventListener("click", () => { clear(); apply(); });
  $("more").addEventListener("click", () => { limit = Infinity; apply(); });
  unfold.addEventListener("click", () => { passing.checked = true; apply(); });

  const folds = [...document.querySelectorAll(".cell > details")];
  const all = $("all");
  if (all) {
    all.hidden = false;
    all.addEventListener("click", () => {
      const open = all.textContent === "Open all";
      folds.forEach((fold) => (fold.open = open));
      all.textContent = open ? "Fold all" : "Open all";
    });
  }

  const THEMES = ["auto", "light", "dark"];
  const theme = $("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "auto") + 1) % THEMES.length];
    document.documentElement.dataset.theme = next;
    theme.textContent = `Theme: ${next}`;
  });

  controls.hidden = false;
  document.querySelectorAll(".keys").forEach((keys) => (keys.hidden = false));
  folds.forEach((fold) => (fold.open = fold.classList.contains("first")));
  apply(false);
  follow();
})();
