// The head view: a line from each token to those it attends to, as dark as the weight, the mean of the chosen heads.
// A token under the pointer or the keyboard's focus stands alone: its lines, their percentages, and behind each token a
// bar of what every head gives it. A click holds a token until it is clicked again, or Escape is pressed.

const FAINTEST = 0.01; // Lines below 1 % cannot be seen; leaving them out bounds a token's lines to 100.
const MAX_CANVAS_HEIGHT = 16000; // device pixels; browsers refuse larger ones
const NUM_TOLD = 5;
const HINT = "Point at a token, or go through them with the arrow keys; a click holds one. Below 1% no line is drawn.";

const view = { layer: 0, heads: new Set(Array(page.numHeads).keys()), weights: null, alone: null, held: null };
const rows = { from: [], to: [] };

function fillTokens(side) {
  rows[side] = page.tokens.map((token, index) => {
    const row = make("li", { title: token, tabIndex: index ? -1 : 0 });
    row.setAttribute("role", "option");
    row.dataset.segment = page.segments[index];
    row.append(make("bdi", { textContent: token }), make("span", { className: "share" }));
    row.addEventListener("pointerenter", (event) => event.pointerType === "touch" || pointAt({ side, index }));
    row.addEventListener("focus", () => pointAt({ side, index }));
    row.addEventListener("click", () => hold({ side, index }));
    return row;
  });
  element(side).append(...rows[side]);
  element(side).addEventListener("keydown", (event) => moveAmongTokens(event, side));
  element(side).addEventListener("pointerleave", () => pointAt(null));
  element(side).addEventListener("focusout", () => pointAt(null));
}

function pointAt(token) {
  view.alone = token ?? view.held;
  paintHeads();
}

function hold(token) {
  const again = view.held?.side === token.side && view.held?.index === token.index;
  view.held = again ? null : token;
  pointAt(view.held);
}

function moveAmongTokens(event, side) {
  const index = rows[side].indexOf(document.activeElement);
  const steps = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: numTokens - 1 };
  const other = { ArrowLeft: "from", ArrowRight: "to" }[event.key];
  if (event.key in steps) visit(rows[side], rows[side][Math.min(Math.max(steps[event.key], 0), numTokens - 1)]);
  else if (other) visit(rows[other], rows[other][index]);
  else if (event.key === "Enter" || event.key === " ") hold({ side, index });
  else return;
  event.preventDefault();
}

function fillChips() {
  const chips = [...view.heads].map((head) => {
    const chip = make("button", { type: "button", textContent: head + 1, title: "Double-click for this head alone" });
    chip.setAttribute("aria-label", `Head ${head + 1}`);
    chip.style.setProperty("--head", headColour(head));
    chip.addEventListener("click", () => chooseHeads(toggled(view.heads, head)));
    chip.addEventListener("dblclick", () => chooseHeads(new Set([head])));
    return chip;
  });
  element("chips").append(...chips);
  element("all-heads").addEventListener("click", () => chooseHeads(new Set(Array(page.numHeads).keys())));
}

function toggled(heads, head) {
  const changed = new Set(heads);
  if (!changed.delete(head)) changed.add(head);
  return changed;
}

function fillChoices() {
  for (let layer = 0; layer < numLayers; layer++) element("layer").add(new Option(layer + 1, layer));
  element("layer").addEventListener("change", () => chooseLayer(Number(element("layer").value)));
  element("layer-before").addEventListener("click", () => chooseLayer(view.layer - 1));
  element("layer-after").addEventListener("click", () => chooseLayer(view.layer + 1));
  element("filter").add(new Option("all", ""));
  for (const pair of ["AA", "AB", "BA", "BB"]) element("filter").add(new Option(`${pair[0]} → ${pair[1]}`, pair));
  element("filter").addEventListener("change", paintHeads);
  element("filter-label").hidden = !page.segments.includes(0) || !page.segments.includes(1);
  element("special").addEventListener("change", paintHeads);
  element("special-label").hidden = !isSpecial.includes(true);
}

function chooseLayer(layer) {
  view.layer = layer;
  element("layer").value = layer;
  element("layer-before").disabled = layer === 0;
  element("layer-after").disabled = layer === numLayers - 1;
  chooseHeads(view.heads);
}

function chooseHeads(heads) {
  view.heads = heads;
  view.weights = meanWeights(view.layer, [...heads]);
  paintHeads();
}

// Whether the sentence filter and the choice of special tokens let a token take part on one side.
function takesPart(side, index) {
  const segment = element("filter").value[side === "from" ? 0 : 1];
  const inSegment = segment === undefined || "AB"[page.segments[index]] === segment;
  return inSegment && (element("special").checked || !isSpecial[index]);
}

function takingPart(side) {
  const only = view.alone?.side === side ? view.alone.index : null;
  const indices = only === null ? [...page.tokens.keys()] : [only];
  return indices.filter((index) => takesPart(side, index));
}

function paintHeads() {
  paintChips();
  paintLines();
  paintTokens();
  tellWeights();
}

function paintChips() {
  [...element("chips").children].forEach((chip, head) => {
    chip.setAttribute("aria-pressed", view.heads.has(head));
  });
}

function paintLines() {
  const canvas = element("lines");
  const { width, height } = canvas.getBoundingClientRect();
  const scale = Math.min(window.devicePixelRatio, MAX_CANVAS_HEIGHT / height);
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.lineWidth = view.alone ? 2 : 1.5;
  pen.strokeStyle = lineColour();
  const lines = visibleLines();
  // A token that stands alone is read by comparing its own lines: the strongest is as dark as can be.
  const darkest = view.alone ? Math.max(...lines.map((line) => line.weight)) : 1;
  for (const { from, to, weight } of lines) drawLine(pen, from, to, weight / darkest, width, height / numTokens);
}

function visibleLines() {
  const faintest = view.alone ? FAINTEST / 10 : FAINTEST;
  const targets = takingPart("to");
  const lines = [];
  for (const from of takingPart("from")) {
    for (const to of targets) {
      const weight = view.weights[from * numTokens + to];
      if (weight >= faintest) lines.push({ from, to, weight });
    }
  }
  return lines;
}

function lineColour() {
  return view.heads.size === 1 ? headColour([...view.heads][0], 1, cssVariable("--lightness")) : cssVariable("--ink");
}

function drawLine(pen, from, to, opacity, width, rowHeight) {
  const [start, end] = [(from + 0.5) * rowHeight, (to + 0.5) * rowHeight];
  pen.globalAlpha = Math.min(opacity, 1);
  pen.beginPath();
  pen.moveTo(0, start);
  pen.bezierCurveTo(width / 2, start, width / 2, end, width, end);
  pen.stroke();
}

// The weights between a token and each of the other column.
function weightsBeside({ side, index }) {
  return page.tokens.map((_, other) => view.weights[placeOf(side, index, other)]);
}

function placeOf(side, index, other) {
  return side === "from" ? index * numTokens + other : other * numTokens + index;
}

function paintTokens() {
  for (const side of ["from", "to"]) {
    const shown = view.alone && view.alone.side !== side && takesPart(view.alone.side, view.alone.index);
    rows[side].forEach((row, index) => {
      const part = takesPart(side, index);
      const share = shown && part ? view.weights[placeOf(view.alone.side, view.alone.index, index)] : 0;
      row.classList.toggle("aside", !part);
      row.classList.toggle("held", view.alone?.side === side && view.alone.index === index);
      row.setAttribute("aria-selected", view.held?.side === side && view.held.index === index);
      row.lastChild.textContent = percent(share);
      row.style.backgroundImage = share ? headBar(side, index) : "";
    });
  }
}

// A bar from the lines outward, as long as the weight, in the colours of the heads that give it.
function headBar(side, index) {
  const place = placeOf(view.alone.side, view.alone.index, index);
  const stops = [];
  let end = 0;
  for (const head of view.heads) {
    const start = end;
    end += (100 * weightOfLevel[levelsOfHead(view.layer, head)[place]]) / view.heads.size;
    stops.push(`${headColour(head, 0.4)} ${start}% ${end}%`);
  }
  return `linear-gradient(to ${side === "to" ? "right" : "left"}, ${stops.join(", ")}, transparent ${end}%)`;
}

function tellWeights() {
  const told = element("told");
  if (!view.heads.size) told.textContent = "No head is chosen.";
  else if (!view.alone) told.textContent = HINT;
  else told.replaceChildren(...wordsFor(view.alone));
}

function wordsFor({ side, index }) {
  const other = side === "from" ? "to" : "from";
  const weights = weightsBeside({ side, index });
  const largest = takingPart(other).sort((a, b) => weights[b] - weights[a]).slice(0, NUM_TOLD);
  const words = [nameOf(index), side === "from" ? " attends to " : " is attended to by "];
  largest.filter((place) => percent(weights[place])).forEach((place, rank) => {
    words.push(rank ? ", " : "", nameOf(place), " ", make("b", { textContent: percent(weights[place]) }));
  });
  return words;
}

function nameOf(index) {
  return make("bdi", { textContent: page.tokens[index] });
}
