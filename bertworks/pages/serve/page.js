// The page: what the models can do as tabs, a form in each, and the requests. All that a tab needs to know stands in
// TASKS; `method` is the one of `Model` without which there is no such tab.

const MOST_TEXTS = 24; // of a heat map that can be read
const TASKS = {
  fill: {
    method: "fill",
    path: "/v1/fill",
    fields: [["input", "sentence"]],
    show: showFill,
    body: (values, form) => ({ input: values.input, top_k: form.topK }),
    problem: (values) => (values.input.includes("[MASK]") ? "" : say("noMask")),
  },
  classify: {
    method: "classify",
    path: "/v1/classify",
    show: showClasses,
    fields: [
      ["input", "text"],
      ["pair", "second"],
    ],
  },
  tag: { method: "tag", path: "/v1/tag", fields: [["input", "text"]], show: showEntities },
  answer: {
    method: "answer",
    path: "/v1/answer",
    fields: [
      ["question", "question"],
      ["context", "passage"],
    ],
    show: showAnswers,
    body: (values) => ({ ...values, top_k: 3 }),
  },
  nsp: {
    method: "nsp",
    path: "/v1/nsp",
    fields: [
      ["input", "first"],
      ["following", "following"],
    ],
    shownBy: 1,
    show: showNext,
  },
  choose: {
    method: "choose",
    path: "/v1/choose",
    fields: [
      ["context", "context"],
      ["endings", "endings"],
    ],
    lines: "endings",
    show: showChoice,
    body: (values) => ({ ...values, endings: linesOf(values.endings) }),
  },
  embed: {
    method: "embed",
    path: "/v1/embeddings",
    fields: [["input", "texts"]],
    lines: "input",
    show: showSimilarities,
    body: (values) => ({ input: linesOf(values.input) }),
  },
  attention: {
    method: "attention",
    path: "/v1/attend",
    fields: [
      ["input", "text"],
      ["pair", "secondOptional"],
    ],
    show: showAttention,
  },
  tokenize: {
    method: "",
    path: "/v1/tokenize",
    fields: [
      ["input", "text"],
      ["pair", "secondOptional"],
    ],
    show: showPieces,
  },
};
const KEY = "bertworks-key";
const LANGUAGE = "bertworks-language";
const KOREAN = "한국어로 쓴 짧은 문장입니다.";

let models = [];
let apiKey = stored(sessionStorage, KEY);
let current = "";
const panels = {};

function element(id) {
  return document.getElementById(id);
}

// Browsers may refuse storage altogether.
function stored(storage, name, value) {
  try {
    if (value === undefined) return storage.getItem(name) ?? "";
    storage.setItem(name, value);
  } catch {
    return "";
  }
  return value;
}

function linesOf(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

// --- requests ---

class Problem extends Error {
  constructor(title, message, status = 0) {
    super(message);
    Object.assign(this, { title, status });
  }
}

async function ask(path, body, signal) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  const started = performance.now();
  let response, answer;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
    });
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(say("errorNetwork"), say("errorNetworkMore"));
  }
  const took = performance.now() - started;
  if (response.ok) return { answer, took, headers: response.headers };
  const { status } = response;
  const name = `error${{ 504: 408, 431: 413, 414: 413, 415: 400 }[status] ?? status}`;
  const wait = response.headers.get("retry-after");
  const message = `${answer.error?.message ?? ""}${wait ? ` ${say("retry", { n: wait })}` : ""}`;
  throw new Problem(say(name in WORDS.en ? name : "errorOther"), message, status);
}

// JSON as people write it: with a space after each comma and colon.
function written(value) {
  if (Array.isArray(value)) return `[${value.map(written).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([name, one]) => `${JSON.stringify(name)}: ${written(one)}`)
    .join(", ")}}`;
}

function curlFor(path, body) {
  const key = apiKey ? ` -H "Authorization: Bearer $BERTWORKS_API_KEY"` : "";
  const data = written(body).replaceAll("'", String.raw`'\''`);
  return [`curl ${location.origin}${path}${key}`, "-H 'Content-Type: application/json'", `-d '${data}'`].join(
    " \\\n  ",
  );
}

// --- panels ---

class Panel {
  constructor(name) {
    Object.assign(this, {
      name,
      task: TASKS[name],
      able: ableTo(name),
      filled: [],
      past: [],
      topK: 5,
      isFresh: true,
      example: 0,
    });
    this.part = make("section", { className: "panel", role: "tabpanel", id: `panel-${name}` });
    this.part.setAttribute("aria-labelledby", `tab-${name}`);
    this.texts = {};
  }

  get fields() {
    const isSingle = this.name === "classify" && !this.model.facts.task?.is_pair;
    return isSingle ? this.task.fields.slice(0, 1) : this.task.fields;
  }

  get examples() {
    const kind = this.name === "classify" && this.fields.length > 1 ? "pair" : this.name;
    return EXAMPLES[this.textLanguage ?? language][kind];
  }

  // Build the panel anew, in the language of the page; the texts stay.
  async build() {
    if (!this.model) {
      const languages = await Promise.all(this.able.map(languageOf));
      this.model = this.able[Math.max(languages.indexOf(language), 0)];
    }
    this.textLanguage = await languageOf(this.model);
    if (this.isFresh) this.useExample(this.example);
    const head = [
      make("h2", { textContent: say(this.name) }),
      make("p", { className: "note", textContent: say(`${this.name}About`) }),
    ];
    this.form = make("form", { autocomplete: "off", noValidate: true });
    this.inputs = {};
    for (const [name, label] of this.fields) this.form.append(this.field(name, label));
    this.form.append(this.actions());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.out = make("div", { className: "out", hidden: true });
    this.part.replaceChildren(...head, this.form, this.out);
    this.form.prepend(this.chooser(), this.exampleList());
  }

  chooser() {
    const { facts } = this.model;
    const select = make("select", { id: `model-${this.name}` });
    for (const { id } of this.able) select.add(new Option(id, id, false, id === this.model.id));
    select.addEventListener("change", async () => {
      this.model = this.able.find(({ id }) => id === select.value);
      await this.build();
      element(`model-${this.name}`).focus();
      this.run();
    });
    const { num_hidden_layers: layers, hidden_size: width } = facts.sizes ?? {};
    const about = [facts.title];
    if (layers && width) about.push(say("layersOf", { layers, width }));
    if (facts.parameters) about.push(say("parameters", { n: rounded(facts.parameters.total) }));
    if (facts.max_length) about.push(say("longest", { n: facts.max_length }));
    about.push(facts.dtype, facts.device);
    return make(
      "div",
      { className: "row models" },
      make("label", { className: "setting", htmlFor: select.id }, say("model"), " "),
      select,
      make("span", { className: "about", textContent: about.filter(Boolean).join(" · ") }),
    );
  }

  exampleList() {
    const buttons = this.examples.map((values, index) => {
      const button = make("button", {
        type: "button",
        lang: this.textLanguage,
        textContent: values[this.task.shownBy ?? 0].split("\n")[0],
      });
      button.title = button.textContent;
      button.addEventListener("click", () => {
        this.useExample(index);
        this.show();
        this.run();
      });
      return button;
    });
    return make(
      "div",
      { className: "examples", role: "group", label: say("examples") },
      make("span", { textContent: say("examples") }),
      ...buttons,
    );
  }

  useExample(index) {
    this.example = Math.min(index, this.examples.length - 1);
    const values = this.examples[this.example];
    this.texts = Object.fromEntries(this.task.fields.map(([name], place) => [name, values[place] ?? ""]));
    Object.assign(this, { filled: [], past: [], isFresh: true });
  }

  show() {
    for (const [name, input] of Object.entries(this.inputs)) input.value = this.texts[name];
  }

  field(name, label) {
    const input = make("textarea", {
      id: `${this.name}-${name}`,
      value: this.texts[name],
      rows: this.rowsOf(name),
      dir: "auto",
    });
    input.lang = this.textLanguage;
    input.addEventListener("input", () => {
      this.texts[name] = input.value;
      Object.assign(this, { filled: [], past: [], isFresh: false });
      this.out.classList.add("stale");
    });
    input.addEventListener("keydown", (event) => {
      const isPlain = !event.shiftKey && this.task.lines !== name && name !== "context";
      // While Hangul is composed, Enter ends the syllable.
      if (event.key !== "Enter" || event.isComposing || !(isPlain || event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.run();
    });
    this.inputs[name] = input;
    return make("div", { className: "field" }, make("label", { htmlFor: input.id, textContent: say(label) }), input);
  }

  rowsOf(name) {
    if (this.task.lines === name) return 5;
    return name === "context" && this.name === "answer" ? 6 : 1;
  }

  actions() {
    const row = make(
      "div",
      { className: "row actions" },
      make("button", { className: "primary", textContent: say("run") }),
    );
    if (this.name !== "fill") return row;
    const insert = make("button", { type: "button", textContent: say("insert") });
    insert.addEventListener("click", () => {
      const { input } = this.inputs;
      input.focus();
      input.setRangeText("[MASK]", input.selectionStart, input.selectionEnd, "end");
      input.dispatchEvent(new Event("input"));
    });
    this.undo = make("button", { type: "button", textContent: say("undo"), hidden: true });
    this.undo.addEventListener("click", () => this.takeBack());
    const select = make("select");
    for (const count of [5, 10, 20]) select.add(new Option(count, count, false, count === this.topK));
    select.addEventListener("change", () => {
      this.topK = Number(select.value);
      this.run();
    });
    row.append(insert, this.undo, make("label", { className: "setting" }, say("candidates"), " ", select));
    return row;
  }

  // --- one request ---

  problemBefore(body) {
    const { lines } = this.task;
    for (const [name, label] of this.fields) {
      if (label !== "secondOptional" && !this.texts[name].trim()) return say("empty", { field: say(label) });
      if (lines !== name) continue;
      if (body[name].length < 2) return say("fewLines", { field: say(label) });
      if (body[name].length > MOST_TEXTS) return say("manyLines", { n: MOST_TEXTS, given: body[name].length });
    }
    return this.task.problem?.(this.texts) ?? "";
  }

  get body() {
    const values = {};
    for (const [name, label] of this.fields) {
      if (label !== "secondOptional" || this.texts[name].trim()) values[name] = this.texts[name];
    }
    return { model: this.model.id, ...(this.task.body ? this.task.body(values, this) : values) };
  }

  async run() {
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    this.out.setAttribute("aria-busy", "true");
    try {
      const { body } = this;
      const problem = this.problemBefore(body);
      if (problem) throw new Problem(say("errorInput"), problem);
      const { answer, took, headers } = await ask(this.task.path, body, signal);
      if (signal.aborted) return;
      this.put(answer, body, took, headers);
    } catch (error) {
      if (error.name !== "AbortError") this.complain(error);
    } finally {
      if (!signal.aborted) this.out.removeAttribute("aria-busy");
    }
  }

  put(answer, body, took, headers) {
    const labels = this.model.facts.labels ?? [];
    const types = [...new Set(labels.map((label) => label.replace(/^[BIES]-/, "")))].filter((type) => type !== "O");
    const tools = {
      filled: this.filled,
      fill: (mask, word) => this.fill(mask, word),
      types,
      longest: this.model.facts.max_length,
    };
    const { parts, told } = this.task.show(answer.results ?? answer.data, body, tools);
    const timing = headers.get("server-timing") ?? "";
    const compute = Number(/compute;dur=([\d.]+)/.exec(timing)?.[1] ?? NaN);
    const tokens = answer.usage?.tokens ?? answer.usage?.total_tokens;
    const values = { tokens, compute: inMs(compute), all: inMs(took) };
    const cost = make("p", {
      className: "cost",
      textContent: say(tokens && compute > 0 ? "cost" : "costPlain", values),
    });
    const curl = curlFor(this.task.path, body);
    this.place([make("div", { className: "found" }, ...parts), cost, this.curlBox(curl)], told);
  }

  place(parts, told) {
    this.out.replaceChildren(...parts);
    this.out.classList.remove("stale");
    this.out.hidden = false;
    if (this.undo) this.undo.hidden = !this.past.length;
    element("told").textContent = told;
  }

  curlBox(curl) {
    const button = make("button", { type: "button", textContent: say("copy") });
    button.addEventListener("click", async () => {
      await copy(curl, box.querySelector("code"));
      button.textContent = element("told").textContent = say("copied");
      setTimeout(() => {
        button.textContent = say("copy");
      }, 1500);
    });
    const box = make(
      "div",
      { className: "curl" },
      make("pre", { tabIndex: 0, role: "region", label: say("curlLabel") }, make("code", { textContent: curl })),
      button,
    );
    return box;
  }

  complain(error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) return askForKey(true);
    const part = make(
      "div",
      { className: "problem", role: "alert" },
      make("strong", { textContent: error.title }),
      make("p", {
        textContent: error.message.charAt(0).toUpperCase() + error.message.slice(1),
        lang: error.status ? "en" : language,
      }),
    );
    this.place([part], "");
  }

  // --- filling masks ---

  fill(mask, token) {
    const text = this.texts.input;
    const found = [...text.matchAll(/\[MASK\]/g)][mask];
    const isPiece = token.startsWith("##");
    const word = isPiece ? token.slice(2) : token;
    const start = isPiece ? text.slice(0, found.index).trimEnd().length : found.index;
    const removed = found.index + found[0].length - start;
    const moved = this.filled.map((one) => {
      const by = one.start > start ? word.length - removed : 0;
      return { start: one.start + by, end: one.end + by };
    });
    this.past.push({ text, filled: this.filled });
    this.change(text.slice(0, start) + word + text.slice(start + removed), [
      ...moved,
      { start, end: start + word.length },
    ]);
  }

  takeBack() {
    const { text, filled } = this.past.pop();
    this.change(text, filled);
  }

  async change(text, filled) {
    Object.assign(this, { filled, isFresh: false });
    this.texts.input = text;
    this.show();
    if (text.includes("[MASK]")) {
      await this.run();
      this.out.querySelector(".bars button")?.focus();
    } else {
      this.asking?.abort();
      const parts = [sentenceWithSlots(text, filled), make("p", { className: "cost", textContent: say("allFilled") })];
      this.place([make("div", { className: "found" }, ...parts)], `${say("allFilled")} ${text}`);
      this.undo.focus();
    }
  }
}

async function copy(text, code) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers have a clipboard only on https and on this machine; the older way works elsewhere.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
}

// 11 million parameters; in Korean 1,113만 개.
function rounded(count) {
  const maximumSignificantDigits = language === "ko" ? 4 : 3;
  const style = { notation: "compact", compactDisplay: "long", useGrouping: true, maximumSignificantDigits };
  return new Intl.NumberFormat(language, style).format(count);
}

function inMs(ms) {
  return ms.toFixed(ms < 10 ? 1 : 0);
}

function ableTo(name) {
  const { method } = TASKS[name];
  return models.filter((model) => !method || model.methods.includes(method));
}

// The language of a model's examples. Where its folder does not say, its own tokenizer does: one that cuts Korean into
// about as many pieces as it has letters, or does not know them, has not learnt it.
async function languageOf(model) {
  const known = model.facts.language;
  if (known) return known === "ko" ? "ko" : "en";
  model.guess ??= ask("/v1/tokenize", { model: model.id, input: KOREAN })
    .then(({ answer }) => {
      const [{ tokens }] = answer.results;
      const isKnown = tokens.length - 2 < 0.8 * KOREAN.replaceAll(" ", "").length && !tokens.includes("[UNK]");
      return isKnown ? "ko" : "en";
    })
    .catch(() => {
      model.guess = undefined;
      return language;
    });
  return model.guess;
}

// --- tabs ---

function makeTabs() {
  const names = Object.keys(TASKS).filter((name) => ableTo(name).length);
  element("tabs").setAttribute("aria-label", say("tasks"));
  element("tabs").replaceChildren(
    ...names.map((name) => {
      const tab = make("button", { type: "button", role: "tab", id: `tab-${name}`, textContent: say(name) });
      tab.setAttribute("aria-controls", `panel-${name}`);
      tab.addEventListener("click", () => open(name));
      return tab;
    }),
  );
  for (const name of names) panels[name] ??= new Panel(name);
  element("panels").replaceChildren(...names.map((name) => panels[name].part));
  return names;
}

async function open(name) {
  current = name;
  for (const tab of element("tabs").children) {
    const isChosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
  }
  for (const [other, { part }] of Object.entries(panels)) part.hidden = other !== name;
  history.replaceState(null, "", `#${name}`);
  const panel = panels[name];
  if (panel.builtIn === language) return;
  panel.builtIn = language;
  await panel.build();
  await panel.run();
}

function moveAmongTabs(event) {
  const tabs = [...element("tabs").children];
  const index = tabs.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const target = { Home: 0, End: tabs.length - 1 }[event.key] ?? (index + (step ?? NaN) + tabs.length) % tabs.length;
  if (!tabs[target] || index < 0) return;
  event.preventDefault();
  tabs[target].focus();
  tabs[target].click();
}

// --- the beginning, the key and the language ---

function useLanguage(chosen) {
  language = chosen;
  document.documentElement.lang = chosen;
  for (const part of document.querySelectorAll("[data-say]")) part.textContent = say(part.dataset.say);
  document.querySelector(`input[name="language"][value="${chosen}"]`).checked = true;
  document.title = `bertworks: ${say("title")}`;
  if (!models.length) return;
  makeTabs();
  open(current);
}

function askForKey(isWrong) {
  element("key-form").hidden = false;
  element("workshop").hidden = true;
  element("change-key").hidden = true;
  element("waiting").textContent = isWrong ? say("keyWrong") : "";
  element("key").value = "";
  element("key").focus();
}

async function begin() {
  try {
    const { answer } = await ask("/v1/models");
    if (!answer.data.length) return wait(say("opening"), 1000);
    await ask("/readyz");
    models = answer.data;
  } catch (error) {
    if (error.status === 401) return askForKey(Boolean(apiKey));
    return error.status === 503 ? wait(say("opening"), 1000) : wait(say("noServer"), 3000);
  }
  element("waiting").textContent = "";
  element("key-form").hidden = true;
  element("change-key").hidden = !apiKey;
  element("workshop").hidden = false;
  const names = makeTabs();
  const asked = location.hash.slice(1);
  if (names.length) open(names.includes(asked) ? asked : names[0]);
  else element("waiting").textContent = say("nothing");
}

function wait(message, ms) {
  element("waiting").textContent = message;
  setTimeout(begin, ms);
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey = element("key").value.trim();
  stored(sessionStorage, KEY, apiKey);
  begin();
});
element("change-key").addEventListener("click", () => askForKey(false));
element("tabs").addEventListener("keydown", moveAmongTabs);
addEventListener("hashchange", () => {
  const name = location.hash.slice(1);
  if (name in panels && name !== current) open(name);
});
for (const radio of document.getElementsByName("language")) {
  radio.addEventListener("change", () => {
    stored(localStorage, LANGUAGE, radio.value);
    useLanguage(radio.value);
  });
}
const preferred = stored(localStorage, LANGUAGE) || navigator.languages.find((one) => /^(ko|en)/.test(one)) || "en";
useLanguage(preferred.startsWith("ko") ? "ko" : "en");
begin();
