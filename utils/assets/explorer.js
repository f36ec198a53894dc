// The path explorer: choose a token, see every path's share of its logit, and where each share came from.
function explore(frame, data) {
  const root = document.getElementById(frame);
  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Int16Array(bytes.buffer);
  };
  const n = data.tokens.length, many = data.paths.length, most = 14;
  const numbers = { contribution: unpack(data.contribution.packed), attention: unpack(data.attention.packed) };
  const at = (what, path, dest, src) => (numbers[what][(path * n + dest) * n + src] / 32767) * data[what].scale[path];
  const signed = (x) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
  const colour = (x) => (x < 0 ? data.negative : data.positive);
  const state = { dest: data.dest, path: null, what: "contribution" };

  const make = (tag, parent, text, style) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (style) node.style.cssText = style;
    parent.appendChild(node);
    return node;
  };
  const plain = "font: inherit; color: inherit; border: 0; background: none; cursor: pointer; padding: 1px 3px; margin: 1px;";
  root.style.cssText = `font: ${data.letters}px sans-serif; max-width: 900px; line-height: 1.5;`;
  make("div", root, data.title, "font-size: 125%; margin-bottom: 6px;");
  const text = make("div", root, undefined, "font-family: monospace; line-height: 2;");
  const buttons = data.tokens.map((token, place) => {
    const button = make("button", text, undefined, plain);
    make("bdi", button, token);
    button.dataset.place = place;
    button.onclick = () => choose({ dest: place, path: null });
    return button;
  });
  const said = make("p", root);
  said.setAttribute("aria-live", "polite");
  said.className = "said";
  const ways = make("div", root, "Tokens are coloured by ", "margin-bottom: 4px;");
  for (const what of ["contribution", "attention"]) {
    const label = make("label", ways, undefined, "margin-right: 12px;");
    const radio = make("input", label);
    radio.type = "radio";
    radio.name = frame + "-what";
    radio.value = what;
    radio.checked = what === state.what;
    radio.onchange = () => choose({ what });
    make("span", label, what === "contribution" ? "what came from them" : "attention to them");
  }
  const bars = make("div", root);

  function order() {
    const all = [...Array(many).keys()];
    return all.sort((a, b) => Math.abs(data.attribution[b][state.dest]) - Math.abs(data.attribution[a][state.dest]));
  }

  function bar(name, value, limit, path) {
    const row = make("button", bars, undefined, plain + "display: grid; grid-template-columns: 9em 1fr 5em; width: 100%;");
    row.className = "path";
    if (path !== null) row.dataset.path = data.paths[path];
    if (path !== null && path === state.path) row.style.background = "#eee";
    make("span", row, name, "text-align: right; padding-right: 8px;");
    const track = make("span", row, undefined, "position: relative; height: 1.2em; border-left: 1px solid #ddd;");
    const width = (50 * Math.abs(value)) / limit;
    const left = value < 0 ? 50 - width : 50;
    make("span", track, "", `position: absolute; left: ${left}%; width: ${width}%; height: 80%; top: 10%; background: ${colour(value)};`);
    make("span", track, "", "position: absolute; left: 50%; height: 100%; border-left: 1px solid #666;");
    make("span", row, signed(value), "text-align: left; padding-left: 8px;");
    if (path === null) return void (row.disabled = true);
    row.onmouseenter = () => paint(path);
    row.onmouseleave = () => paint(state.path);
    row.onclick = () => choose({ path: state.path === path ? null : path });
  }

  function paint(path) {
    const sources = data.tokens.map((_, src) => {
      if (src > state.dest) return 0;
      if (path !== null) return at(state.what, path, state.dest, src);
      if (state.what === "attention") return 0;
      let sum = 0;
      for (let p = 0; p < many; p++) sum += at("contribution", p, state.dest, src);
      return sum;
    });
    const limit = state.what === "attention" ? 1 : Math.max(...sources.map(Math.abs), 1e-9);
    buttons.forEach((button, place) => {
      const value = sources[place];
      const alpha = Math.round(200 * Math.min(1, Math.abs(value) / limit)).toString(16).padStart(2, "0");
      button.style.background = place > state.dest ? "none" : colour(value) + alpha;
      button.style.opacity = place > state.dest ? 0.4 : 1;
      button.style.outline = place === state.dest ? "2px solid black" : "none";
      button.title = place > state.dest ? "" : `${state.what} ${signed(value)}`;
      button.setAttribute("aria-pressed", place === state.dest);
    });
    const through = path === null ? "all paths" : data.paths[path];
    const best = sources.reduce((m, x, i) => (Math.abs(x) > Math.abs(sources[m]) ? i : m), 0);
    root.dataset.through = through;
    said.textContent =
      `After “${data.tokens[state.dest]}” (${state.dest}), the logit of “${data.targets[state.dest]}” is ` +
      `${signed(data.logits[state.dest])}, the sum of ${many} paths. Coloured: ${through}` +
      (path === null && state.what === "attention" ? " (point at a path to see where it looks)." :
        `; most from “${data.tokens[best]}” (${best}), ${signed(sources[best])}.`);
  }

  function draw() {
    bars.replaceChildren();
    const ranked = order(), shown = ranked.slice(0, most), rest = ranked.slice(most);
    const value = (path) => data.attribution[path][state.dest];
    const others = rest.reduce((sum, path) => sum + value(path), 0);
    const limit = Math.max(...shown.map((path) => Math.abs(value(path))), Math.abs(others), Math.abs(data.logits[state.dest]), 1e-9);
    for (const path of shown) bar(data.paths[path], value(path), limit, path);
    if (rest.length) bar(`${rest.length} other paths`, others, limit, null);
    bar("sum: the logit", data.logits[state.dest], limit, null);
    paint(state.path);
  }

  function choose(change) {
    Object.assign(state, change);
    draw();
  }
  draw();
}
