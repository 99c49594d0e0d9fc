// What the server found, drawn: a function for each task takes the answer and what was asked, and returns the parts to
// show and one sentence that a screen reader says. Texts from outside only ever become text nodes, never markup.

const FAINTEST = 0.01; // lines below 1 % cannot be seen
const NUM_TOLD = 4;
let whenThemeChanges = () => {}; // a canvas does not take a new colour by itself
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => whenThemeChanges());

function make(tag, properties = {}, ...children) {
  const { role, label, ...others } = properties;
  const made = Object.assign(document.createElement(tag), others);
  if (role) made.setAttribute("role", role);
  if (label) made.setAttribute("aria-label", label);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// What a model or a person wrote: it may run in any direction, and is not in the language of the page.
function foreign(text, properties = {}) {
  return make("bdi", { lang: "", textContent: text, title: text.length > 14 ? text : "", ...properties });
}

function percent(share) {
  const hundredfold = 100 * share;
  if (hundredfold > 0 && hundredfold < 0.05) return "<0.1%";
  return `${hundredfold.toFixed(hundredfold < 9.95 ? 1 : 0)}%`;
}

// Ends of entities count Unicode characters, as Python does; JavaScript's strings count UTF-16 units.
function cutter(text) {
  const characters = Array.from(text);
  return (start, end) => characters.slice(start, end).join("");
}

function bar(share) {
  const inner = make("i");
  inner.style.setProperty("--share", Math.max(0, Math.min(share, 1)));
  const outer = make("span", { className: "bar" }, inner);
  outer.setAttribute("aria-hidden", "true");
  return outer;
}

function shareList(pairs, { best = 0, wide = false } = {}) {
  const rows = pairs.map(([label, share], index) =>
    make(
      "li",
      { className: index === best ? "best" : "" },
      foreign(label),
      bar(share),
      make("span", { className: "share", textContent: percent(share) }),
    ),
  );
  return make("ol", { className: wide ? "bars wide" : "bars" }, ...rows);
}

// --- fill ---

function showFill(results, asked, tools) {
  const masks = results[0];
  const parts = [sentenceWithSlots(asked.input, tools.filled)];
  const cards = masks.map((guesses, index) => {
    const most = Math.max(...guesses.map((guess) => guess.score));
    const rows = guesses.map((guess, rank) => {
      const button = make(
        "button",
        { type: "button", title: say("putIn") },
        foreign(guess.token, { title: "" }),
        " ",
        bar(guess.score / most),
        make("span", { className: "share", textContent: percent(guess.score) }),
      );
      button.addEventListener("click", () => tools.fill(index, guess.token));
      return make("li", { className: rank ? "" : "best" }, button);
    });
    const title = masks.length > 1 ? say("maskOf", { n: index + 1 }) : say("oneMask");
    return make("section", {}, make("h3", { textContent: title }), make("ol", { className: "bars" }, ...rows));
  });
  parts.push(make("div", { className: "masks" }, ...cards));
  const [first] = masks[0] ?? [];
  return { parts, told: first ? say("toldFill", { word: first.token, share: percent(first.score) }) : "" };
}

// The sentence, its masks as numbered slots and the words that were put in marked; `filled` are places in the text.
function sentenceWithSlots(text, filled) {
  const marks = [...text.matchAll(/\[MASK\]/g)].map((found, index) => ({
    start: found.index,
    end: found.index + 6,
    slot: index + 1,
  }));
  const parts = [];
  let place = 0;
  for (const mark of [...marks, ...filled].sort((a, b) => a.start - b.start)) {
    parts.push(text.slice(place, mark.start));
    parts.push(
      mark.slot
        ? make("span", { className: "slot", textContent: marks.length > 1 ? mark.slot : "?" })
        : make("span", { className: "filled", textContent: text.slice(mark.start, mark.end) }),
    );
    place = mark.end;
  }
  return make("p", { className: "said", lang: "" }, ...parts, text.slice(place));
}

// --- texts and pairs ---

function showClasses(results) {
  const [found] = results;
  if (!found.scores) {
    const value = found.score.toFixed(2);
    return {
      parts: [make("h3", { textContent: say("score") }), make("p", { className: "figure", textContent: value })],
      told: `${say("score")} ${value}`,
    };
  }
  const pairs = Object.entries(found.scores).sort((a, b) => b[1] - a[1]);
  const chosen = found.labels ?? [found.label];
  const verdict = make("p", { className: "verdict" });
  if (chosen.length) chosen.forEach((label, index) => verdict.append(index ? ", " : "", foreign(label, { title: "" })));
  else verdict.textContent = say("noLabels");
  const told = chosen.map((label) => say("toldClass", { label, share: percent(found.scores[label]) })).join(" ");
  return { parts: [verdict, shareList(pairs, { best: chosen.length ? 0 : -1 })], told: told || say("noLabels") };
}

function showNext(results) {
  const [{ is_next, is_random }] = results;
  const verdict = is_next >= 0.5 ? say("yesNext") : say("noNext");
  const list = shareList(
    [
      [say("isNext"), is_next],
      [say("isRandom"), is_random],
    ],
    { best: is_next >= 0.5 ? 0 : 1 },
  );
  return {
    parts: [make("p", { className: "verdict", textContent: verdict }), list],
    told: `${verdict}, ${percent(Math.max(is_next, is_random))}`,
  };
}

function showChoice(results, asked) {
  const [found] = results;
  const pairs = asked.endings.map((ending, index) => [ending, found.scores[index]]);
  const told = say("toldChoice", {
    n: found.choice + 1,
    share: percent(found.score),
    text: asked.endings[found.choice],
  });
  return { parts: [shareList(pairs, { best: found.choice, wide: true })], told };
}

// --- entities and answers ---

function showEntities(results, asked, tools) {
  const [entities] = results;
  const cut = cutter(asked.input);
  const types = tools.types.length ? tools.types : [...new Set(entities.map((entity) => entity.type))].sort();
  const hue = (type) => Math.round((360 * Math.max(types.indexOf(type), 0)) / types.length + 265) % 360;
  const parts = [];
  let place = 0;
  for (const entity of entities) {
    const mark = make("mark", { lang: "" }, entity.text, make("small", { textContent: entity.type }));
    mark.style.setProperty("--hue", hue(entity.type));
    parts.push(cut(place, entity.start), mark);
    place = entity.end;
  }
  const passage = make("p", { className: "said passage", lang: "" }, ...parts, cut(place));
  if (!entities.length) {
    return {
      parts: [passage, make("p", { className: "note", textContent: say("noEntities") })],
      told: say("noEntities"),
    };
  }
  const rows = entities.map((entity) => {
    const kind = make("td", {}, make("span", { className: "kind-of", textContent: entity.type }));
    kind.style.setProperty("--hue", hue(entity.type));
    return make(
      "tr",
      {},
      make("td", {}, foreign(entity.text)),
      kind,
      make("td", { textContent: percent(entity.score) }),
    );
  });
  return {
    parts: [passage, listTable([say("entity"), say("type"), say("score")], rows)],
    told: say("toldTag", { n: entities.length }),
  };
}

function listTable(names, rows) {
  const heads = names.map((name) => make("th", { scope: "col", textContent: name }));
  return make("table", { className: "list" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

function showAnswers(results, asked) {
  const [answers] = results;
  const cut = cutter(asked.context);
  const passage = make("p", { className: "said passage", lang: "" });
  const buttons = [];
  const pick = (chosen) => {
    const { start, end } = answers[chosen];
    if (start === null) passage.replaceChildren(asked.context);
    else
      passage.replaceChildren(
        cut(0, start),
        make("mark", { className: "span", textContent: cut(start, end) }),
        cut(end),
      );
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === chosen));
  };
  const rows = answers.map((answer, index) => {
    const button = make(
      "button",
      { type: "button", title: say("show") },
      answer.start === null ? say("noAnswer") : foreign(answer.text, { title: "" }),
    );
    button.addEventListener("click", () => pick(index));
    buttons.push(button);
    return make("tr", {}, make("td", {}, button), make("td", { textContent: percent(answer.score) }));
  });
  pick(0);
  const [best] = answers;
  return {
    parts: [passage, listTable([say("answerWord"), say("score")], rows)],
    told: best.start === null ? say("noAnswer") : say("toldAnswer", { text: best.text }),
  };
}

// --- similarity ---

function cosines(vectors) {
  const lengths = vectors.map((vector) => Math.hypot(...vector) || 1);
  return vectors.map((a, row) =>
    vectors.map((b, column) => {
      let sum = 0;
      for (let index = 0; index < a.length; index++) sum += a[index] * b[index];
      return sum / lengths[row] / lengths[column];
    }),
  );
}

function showSimilarities(data, asked) {
  const values = cosines(data.map((one) => one.embedding));
  const others = values.flatMap((row, index) => row.filter((_, column) => column !== index));
  const [low, high] = [Math.min(...others), Math.max(...others)];
  let best = [0, 1];
  const rows = values.map((row, from) => {
    const cells = row.map((value, to) => {
      if (from !== to && value > values[best[0]][best[1]]) best = [from, to];
      const cell = make("td", { textContent: value.toFixed(2), className: from === to ? "self" : "" });
      cell.style.setProperty("--share", high > low ? (value - low) / (high - low) : 0.5);
      return cell;
    });
    const number = make("b", { textContent: from + 1 });
    return make("tr", {}, make("th", { scope: "row" }, make("span", {}, number, foreign(asked.input[from]))), ...cells);
  });
  const numbers = values.map((_, index) => make("th", { scope: "col", textContent: index + 1 }));
  const table = make(
    "table",
    { className: "heat", label: say("heat") },
    make("thead", {}, make("tr", {}, make("td", { className: "self" }), ...numbers)),
    make("tbody", {}, ...rows),
  );
  const value = values[best[0]][best[1]].toFixed(2);
  const told = say("alike", { a: Math.min(...best) + 1, b: Math.max(...best) + 1, value });
  return { parts: [scrolling(table, say("heat")), make("p", { className: "cost", textContent: told })], told };
}

// A part that may be wider than the page, which the keyboard can scroll.
function scrolling(part, label) {
  return make("div", { className: "scroll", role: "region", label, tabIndex: 0 }, part);
}

// --- pieces ---

function showPieces(results, asked, tools) {
  const [found] = results;
  const words = [];
  found.tokens.forEach((token, index) => {
    const word = found.word_ids[index];
    const piece = make(
      "span",
      { className: word === null ? "piece special" : "piece" },
      foreign(token, { title: "" }),
      make("small", { textContent: found.ids[index] }),
    );
    piece.dataset.segment = found.segment_ids[index];
    const previous = words.at(-1);
    const key = word === null ? null : `${found.segment_ids[index]}.${word}`;
    if (key !== null && previous?.key === key) previous.pieces.push(piece);
    else words.push({ key, pieces: [piece] });
  });
  const list = make(
    "ol",
    { className: "pieces" },
    ...words.map(({ pieces }) => make("li", { className: "word" }, ...pieces)),
  );
  const counts = { n: found.tokens.length, words: words.filter(({ key }) => key !== null).length, most: tools.longest };
  const told = say(tools.longest ? "pieces" : "piecesAny", counts);
  return { parts: [make("h3", { textContent: told }), list], told };
}

// --- attention ---

// A grid of all heads, each a small picture of its weights, is also the choice of what the lines beside it show.
function showAttention(results) {
  const [{ tokens, segment_ids, weights, layers }] = results;
  const numHeads = weights[0]?.length ?? 0;
  if (!numHeads)
    return { parts: [make("p", { className: "note", textContent: say("noAttention") })], told: say("noAttention") };
  const means = weights.map((heads) =>
    heads[0].map((row, from) => row.map((_, to) => heads.reduce((sum, head) => sum + head[from][to], 0) / numHeads)),
  );
  const view = { layer: Math.floor(layers.length / 2), head: -1, alone: null, held: null };
  const matrixOf = (layer, head) => (head < 0 ? means[layer] : weights[layer][head]);
  const nameOf = (layer, head) =>
    head < 0 ? say("layerMean", { layer: layers[layer] }) : say("layerHead", { layer: layers[layer], head: head + 1 });

  const canvas = make("canvas");
  canvas.setAttribute("aria-hidden", "true");
  const told = make("p", { className: "note", role: "status", textContent: say("hint") });
  const title = make("h3", { className: "unseen" });
  const rows = { from: [], to: [] };
  const columns = {};
  for (const side of ["from", "to"]) {
    rows[side] = tokens.map((token, index) => {
      const row = make(
        "li",
        { role: "option", tabIndex: index ? -1 : 0 },
        foreign(token),
        make("span", { className: "share" }),
      );
      row.dataset.segment = segment_ids[index];
      row.addEventListener("pointerenter", (event) => event.pointerType === "touch" || point({ side, index }));
      row.addEventListener("focus", () => point({ side, index }));
      row.addEventListener("click", () => hold({ side, index }));
      return row;
    });
    columns[side] = make(
      "ol",
      { className: "tokens", role: "listbox", label: say(side === "from" ? "token" : "looksAt") },
      ...rows[side],
    );
    columns[side].addEventListener("pointerleave", () => point(null));
    columns[side].addEventListener("focusout", () => point(null));
    columns[side].addEventListener("keydown", (event) => {
      const index = rows[side].indexOf(document.activeElement);
      const moves = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: tokens.length - 1 };
      const other = { ArrowLeft: "from", ArrowRight: "to" }[event.key];
      if (event.key in moves) visit(rows[side], Math.min(Math.max(moves[event.key], 0), tokens.length - 1));
      else if (other) visit(rows[other], index);
      else if (event.key === "Enter" || event.key === " ") hold({ side, index });
      else if (event.key === "Escape") hold(null);
      else return;
      event.preventDefault();
    });
  }

  function point(token) {
    view.alone = token ?? view.held;
    paint();
  }

  function hold(token) {
    const again = token && view.held?.side === token.side && view.held.index === token.index;
    view.held = again ? null : token;
    point(view.held);
  }

  function weightBetween({ side, index }, other) {
    const matrix = matrixOf(view.layer, view.head);
    return side === "from" ? matrix[index][other] : matrix[other][index];
  }

  function paint() {
    for (const side of ["from", "to"]) {
      const beside = view.alone && view.alone.side !== side;
      rows[side].forEach((row, index) => {
        const weight = beside ? weightBetween(view.alone, index) : 0;
        row.lastChild.textContent = weight >= 0.0005 ? percent(weight) : "";
        row.classList.toggle("alone", view.alone?.side === side && view.alone.index === index);
        row.setAttribute("aria-selected", view.held?.side === side && view.held.index === index);
      });
    }
    told.textContent = view.alone ? wordsFor(view.alone) : say("hint");
    drawLines();
  }

  function wordsFor(token) {
    const weights = tokens.map((_, other) => weightBetween(token, other));
    const largest = [...tokens.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, NUM_TOLD);
    const list = largest.map((index) => `${tokens[index]} ${percent(weights[index])}`).join(", ");
    return say(token.side === "from" ? "toldToken" : "toldBack", { token: tokens[token.index], list });
  }

  function drawLines() {
    const { width, height } = canvas.getBoundingClientRect();
    if (!width) return;
    const scale = Math.min(devicePixelRatio, 16000 / height);
    [canvas.width, canvas.height] = [width * scale, height * scale];
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    pen.lineWidth = view.alone ? 2 : 1.5;
    const matrix = matrixOf(view.layer, view.head);
    const step = height / tokens.length;
    const darkest = view.alone ? Math.max(...tokens.map((_, other) => weightBetween(view.alone, other))) : 1;
    matrix.forEach((row, from) =>
      row.forEach((weight, to) => {
        const isAside = view.alone && (view.alone.side === "from" ? from : to) !== view.alone.index;
        if (isAside || weight < FAINTEST) return;
        pen.globalAlpha = Math.min(weight / darkest, 1);
        pen.beginPath();
        pen.moveTo(0, (from + 0.5) * step);
        pen.bezierCurveTo(width / 2, (from + 0.5) * step, width / 2, (to + 0.5) * step, width, (to + 0.5) * step);
        pen.stroke();
      }),
    );
  }

  const buttons = [];
  const grid = make("table", { className: "heads" });
  grid.style.setProperty("--size", `${Math.max(22, Math.min(44, Math.floor(300 / (numHeads + 1))))}px`);
  const heads = grid.createTHead().insertRow();
  heads.append(
    make("th", { scope: "col", textContent: say("layer") }),
    make("th", { scope: "col", textContent: say("mean") }),
  );
  for (let head = 0; head < numHeads; head++) heads.append(make("th", { scope: "col", textContent: head + 1 }));
  const body = grid.createTBody();
  layers.forEach((number, layer) => {
    const row = body.insertRow();
    row.append(make("th", { scope: "row", textContent: number }));
    for (let head = -1; head < numHeads; head++) {
      const picture = make("canvas", { width: tokens.length, height: tokens.length });
      const button = make(
        "button",
        { type: "button", label: nameOf(layer, head), title: nameOf(layer, head), tabIndex: -1 },
        picture,
      );
      button.addEventListener("click", () => choose(layer, head));
      buttons.push({ button, picture, layer, head });
      row.append(make("td", { className: head < 0 ? "mean" : "" }, button));
    }
  });
  grid.addEventListener("keydown", (event) => {
    const index = buttons.findIndex(({ button }) => button === document.activeElement);
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -numHeads - 1, ArrowDown: numHeads + 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    if (buttons[index + move])
      visit(
        buttons.map(({ button }) => button),
        index + move,
      );
  });

  function choose(layer, head) {
    Object.assign(view, { layer, head });
    for (const one of buttons) {
      const isChosen = one.layer === layer && one.head === head;
      one.button.setAttribute("aria-pressed", isChosen);
      one.button.tabIndex = isChosen ? 0 : -1;
    }
    title.textContent = nameOf(layer, head);
    paint();
  }

  function paintPictures() {
    const pen = make("canvas", { width: 1, height: 1 }).getContext("2d");
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
    for (const { picture, layer, head } of buttons) {
      const image = new ImageData(tokens.length, tokens.length);
      matrixOf(layer, head)
        .flat()
        .forEach((weight, place) => {
          // Most weights are small: the root shows them.
          image.data.set([red, green, blue, 255 * Math.sqrt(weight)], 4 * place);
        });
      picture.getContext("2d").putImageData(image, 0, 0);
    }
  }

  const lines = make(
    "div",
    { className: "lines" },
    make("h3", { textContent: say("token") }),
    make("h3", { textContent: say("looksAt") }),
    columns.from,
    make("div", { className: "between" }, canvas),
    columns.to,
  );
  const part = make(
    "div",
    { className: "attention" },
    told,
    scrolling(grid, `${say("layer")}, ${say("head")}`),
    make("div", {}, title, lines),
  );
  choose(view.layer, view.head);
  paintPictures();
  whenThemeChanges = () => {
    paintPictures();
    drawLines();
  };
  new ResizeObserver(drawLines).observe(canvas);
  return { parts: [part], told: say("toldAttention", { n: tokens.length, what: nameOf(view.layer, view.head) }) };
}

// Moves among many items that are one stop of the Tab key: only the item last visited can be tabbed to.
function visit(items, index) {
  for (const other of items) other.tabIndex = -1;
  items[index].tabIndex = 0;
  items[index].focus();
}
