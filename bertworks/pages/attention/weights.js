"use strict";
// What the page knows: tokens, segments and, for every layer, a byte for each weight [head][from][to].
// A byte is 255 * sqrt(weight / scale), see attention_page.py. Layers are decoded when they are first looked at.

const page = JSON.parse(document.getElementById("data").textContent);
const numTokens = page.tokens.length;
const numLayers = page.layers.length;
const weightOfLevel = Float32Array.from({ length: 256 }, (_, level) => page.scale * (level / 255) ** 2);
const isSpecial = page.tokens.map((token) => token === "[CLS]" || token === "[SEP]");
const decodedLayers = new Array(numLayers);

function element(id) {
  return document.getElementById(id);
}

function make(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

function levelsOf(layer) {
  decodedLayers[layer] ??= bytesOf(atob(page.layers[layer]));
  return decodedLayers[layer];
}

// A plain loop: Uint8Array.from takes ten times as long, seconds for a large model over 512 tokens.
function bytesOf(text) {
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  return bytes;
}

// The weights of one head as a view into its layer, no copy.
function levelsOfHead(layer, head) {
  const size = numTokens * numTokens;
  return levelsOf(layer).subarray(head * size, (head + 1) * size);
}

function meanWeights(layer, heads) {
  const mean = new Float32Array(numTokens * numTokens);
  for (const head of heads) {
    levelsOfHead(layer, head).forEach((level, place) => {
      mean[place] += weightOfLevel[level] / heads.length;
    });
  }
  return mean;
}

function percent(weight) {
  const hundredfold = 100 * weight;
  return hundredfold < 0.05 ? "" : `${hundredfold.toFixed(hundredfold < 9.95 ? 1 : 0)}%`;
}

function cssVariable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Hues spread evenly over the heads at one lightness, so that no head looks heavier than another. A canvas knows no
// CSS variables and has to be given the lightness.
function headColour(head, opacity = 1, lightness = "var(--lightness)") {
  return `oklch(${lightness} 0.13 ${Math.round((360 * head) / page.numHeads + 25)} / ${opacity})`;
}

// Moves among many items that are one stop of the Tab key: only the item last visited can be tabbed to.
function visit(items, item) {
  for (const other of items) other.tabIndex = -1;
  item.tabIndex = 0;
  item.focus();
}
