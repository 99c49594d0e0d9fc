// The model view: every head of every layer as a small picture of its weights, and the choice between the two views.

const THUMBNAIL_SIZE = 96; // pixels at most; of tokens that share one, the largest weight counts
const COARSE = 48;

function fillThumbnails() {
  const table = element("thumbnails");
  table.style.setProperty("--heads", page.numHeads);
  table.classList.toggle("coarse", numTokens < COARSE);
  const heads = table.createTHead().insertRow();
  heads.append(make("th", { scope: "col", textContent: "Layer" }));
  for (let head = 0; head < page.numHeads; head++) heads.append(make("th", { scope: "col", textContent: head + 1 }));
  const body = table.createTBody();
  for (let layer = 0; layer < numLayers; layer++) {
    const row = body.insertRow();
    row.append(make("th", { scope: "row", textContent: layer + 1 }));
    for (let head = 0; head < page.numHeads; head++) row.insertCell().append(thumbnailButton(layer, head));
  }
  table.addEventListener("keydown", moveAmongThumbnails);
}

function thumbnailButton(layer, head) {
  const name = `Layer ${layer + 1}, head ${head + 1}`;
  const button = make("button", { type: "button", title: name, tabIndex: layer || head ? -1 : 0 });
  button.setAttribute("aria-label", name);
  const size = Math.min(numTokens, THUMBNAIL_SIZE);
  button.append(make("canvas", { width: size, height: size }));
  button.addEventListener("click", () => openHead(layer, head));
  return button;
}

function moveAmongThumbnails(event) {
  const buttons = [...element("thumbnails").querySelectorAll("button")];
  const index = buttons.indexOf(document.activeElement);
  const column = index % page.numHeads;
  const target = {
    ArrowUp: index - page.numHeads,
    ArrowDown: index + page.numHeads,
    ArrowLeft: column ? index - 1 : -1,
    ArrowRight: column < page.numHeads - 1 ? index + 1 : -1,
    Home: 0,
    End: buttons.length - 1,
  }[event.key];
  if (target === undefined) return;
  if (buttons[target]) visit(buttons, buttons[target]);
  event.preventDefault();
}

function openHead(layer, head) {
  view.heads = new Set([head]);
  document.querySelector('input[value="head"]').checked = true;
  showView();
  chooseLayer(layer);
  element("chips").children[head].focus();
}

function paintThumbnails() {
  const colour = pixelOf(cssVariable("--ink"));
  element("thumbnails").querySelectorAll("canvas").forEach((canvas, index) => {
    const levels = levelsOfHead(Math.floor(index / page.numHeads), index % page.numHeads);
    paintThumbnail(canvas, levels, colour);
  });
}

function paintThumbnail(canvas, levels, colour) {
  const size = canvas.width;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(size, size);
  new Uint32Array(image.data.buffer).fill(new Uint32Array(colour.buffer)[0]);
  largestLevels(levels, size).forEach((level, pixel) => {
    image.data[4 * pixel + 3] = level;
  });
  pen.putImageData(image, 0, 0);
}

function largestLevels(levels, size) {
  const largest = new Uint8Array(size * size);
  const pixelOfToken = page.tokens.map((_, index) => Math.floor((index * size) / numTokens));
  for (let from = 0, place = 0; from < numTokens; from++) {
    for (let to = 0; to < numTokens; to++, place++) {
      const pixel = size * pixelOfToken[from] + pixelOfToken[to];
      if (levels[place] > largest[pixel]) largest[pixel] = levels[place];
    }
  }
  return largest;
}

function pixelOf(colour) {
  const pen = make("canvas", { width: 1, height: 1 }).getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return pen.getImageData(0, 0, 1, 1).data;
}

function showView() {
  document.body.dataset.view = element("controls").elements.view.value;
  paint();
}

function paint() {
  if (document.body.dataset.view === "model") paintThumbnails();
  else paintHeads();
}

function begin() {
  element("main").hidden = false;
  fillTokens("from");
  fillTokens("to");
  fillChips();
  fillChoices();
  fillThumbnails();
  for (const radio of element("controls").elements.view) radio.addEventListener("change", showView);
  document.addEventListener("keydown", (event) => event.key === "Escape" && letGo());
  document.body.dataset.view = "head";
  chooseLayer(0);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(paintLines).observe(element("lines"));
}

function letGo() {
  view.held = null;
  pointAt(null);
}

begin();
