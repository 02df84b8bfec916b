#!/usr/bin/env node
// Checks a certificate of private releases, alone or against the published releases, by whole numbers alone: a second verifier
// beside scripts/dphmm-verify, out of the same specification (docs/reference/certificate.md; '§' is a section there), in another
// language. It needs Node's standard library alone, and does not look at a model's file, which the first one does.
// Usage: dphmm-verify.mjs CERTIFICATE [RELEASES.csv|.geojson]
// Exit codes: 0 all that is checked holds, 1 something is refused, 2 a file does not read.
import { createHash } from "node:crypto";
import { existsSync, readFileSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
export const [LARGEST, MOST_STATES, LONGEST_LINE, LONGEST_GAP, TOTAL] = [2 ** 53, 1 << 20, 1 << 26, 100_000, 2n ** 62n];
/** What a certificate claims and does not hold. */
export class Refused extends Error {}
export function hold(condition, reason) { if (!condition) throw new Refused(reason); }
// ---- fractions: pairs of whole numbers in lowest terms, with a positive denominator -------------------------------
const abs = (a) => (a < 0n ? -a : a);
export const gcd = (a, b) => (b ? gcd(b, a % b) : abs(a));
export class Fraction {
  constructor(num, den = 1n) {
    hold(den !== 0n, "a fraction divides by zero"); const sign = den < 0n ? -1n : 1n;
    const common = gcd(num, den) || 1n; this.num = (sign * num) / common; this.den = (sign * den) / common;
  }
  static of(text) { // of a fraction, a decimal or a number with an exponent, as they are written
    const found = /^(-?\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text);
    if (!found) {
      const pair = /^(-?\d+)\/(\d+)$/.exec(text); hold(pair, `${String(text).slice(0, 20)} is no number`);
      return new Fraction(BigInt(pair[1]), BigInt(pair[2]));
    }
    const [, head, tail = "", exponent = "0"] = found; const power = Number(exponent) - tail.length;
    hold(Math.abs(power) < 2000, "a number is too large or too small"); const digits = BigInt(head + tail);
    return power < 0 ? new Fraction(digits, 10n ** BigInt(-power)) : new Fraction(digits * 10n ** BigInt(power));
  }
  plus(other) { return new Fraction(this.num * other.den + other.num * this.den, this.den * other.den); }
  minus(other) { return new Fraction(this.num * other.den - other.num * this.den, this.den * other.den); }
  times(other) { return new Fraction(this.num * other.num, this.den * other.den); }
  over(other) { return new Fraction(this.num * other.den, this.den * other.num); }
  compare(other) { const apart = this.num * other.den - other.num * this.den; return apart < 0n ? -1 : apart > 0n ? 1 : 0; }
  floor() {
    const found = this.num / this.den; return this.num < 0n && found * this.den !== this.num ? found - 1n : found;
  }
  ceil() { return -new Fraction(-this.num, this.den).floor(); }
  abs() { return new Fraction(abs(this.num), this.den); }
  toString() { return this.den === 1n ? String(this.num) : `${this.num}/${this.den}`; }
  toNumber() { // the nearest double; of two that are as near the even one
    if (this.num === 0n) return 0;
    const size = abs(this.num); let shift = size.toString(2).length - this.den.toString(2).length - 56;
    if (shift < -1074) shift = -1074;
    const [top, bottom] = shift < 0 ? [size << BigInt(-shift), this.den] : [size, this.den << BigInt(shift)]; let quotient = top / bottom;
    if (quotient * bottom !== top) quotient |= 1n; // a sticky bit: what is left decides a tie
    const spare = Math.max(0, quotient.toString(2).length - 53); const left = quotient & ((1n << BigInt(spare)) - 1n);
    let found = quotient >> BigInt(spare); const half = spare ? 1n << BigInt(spare - 1) : 1n;
    if (spare && (left > half || (left === half && found & 1n))) found += 1n;
    const value = Number(found) * 2 ** Math.max(-1000, shift + spare) * 2 ** Math.min(0, shift + spare + 1000);
    return this.num < 0n ? -value : value;
  }
}
export const ZERO = new Fraction(0n);
const whole = (number) => new Fraction(BigInt(number));
// ---- values (§1) ------------------------------------------------------------------------------------------------
export function parse(text, number = wholeNumber) { // a JSON text in which no key stands twice; numbers are what `number` makes of their text
  const string = /"((?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"/.source;
  const token = new RegExp(`[ \\t\\n\\r]*(?:([{}[\\],:])|${string}|(true|false|null)|(-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d+)?))`, "y");
  const next = () => token.exec(text) ?? hold(false, "it is no JSON");
  function value([, mark, quoted, word, digits], depth) {
    hold(depth < 500, "it is nested too deeply");
    if (quoted !== undefined) return JSON.parse(`"${quoted}"`);
    if (word) return { true: true, false: false, null: null }[word];
    if (digits) return number(digits);
    hold(mark === "{" || mark === "[", "it is no JSON"); const [end, found] = mark === "{" ? ["}", new Map()] : ["]", []];
    for (let one = next(), first = true; !(first && one[1] === end); first = false) {
      if (mark === "{") {
        hold(one[2] !== undefined && next()[1] === ":", "it is no JSON"); const key = value(one, depth + 1);
        hold(!found.has(key), "a key stands twice in one object"); found.set(key, value(next(), depth + 1));
      } else found.push(value(one, depth + 1));
      const [, after] = next();
      if (after === end) return found;
      hold(after === ",", "it is no JSON"); one = next();
    }
    return found;
  }
  const found = value(next(), 0); hold(/^[ \t\n\r]*$/.test(text.slice(token.lastIndex)), "it is no JSON"); return found;
}
function wholeNumber(text) {
  hold(/^-?\d+$/.test(text), `${text.slice(0, 20)} is no whole number; fractions are texts such as 1/2`);
  hold(Number.isSafeInteger(Number(text)) || /^-?9007199254740992$/.test(text), `${text.slice(0, 20)} is beyond 2**53`);
  return Number(text) + 0;
}
export function canonical(value) { // the text that a digest is of: sorted keys, no spaces, escapes beyond ASCII
  if (value instanceof Map) {
    const keys = [...value.keys()].sort();
    return `{${keys.map((key) => `${canonical(key)}:${canonical(value.get(key))}`).join(",")}}`;
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "string") return String(value === -0 ? 0 : value);
  const names = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b" };
  const escaped = (c) => names[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return `"${value.replace(/[\\"]|[^ -~]/g, escaped)}"`;
}
export function fields(value, needed, optional = "") { // the values of an object's keys, as they are named here; null for an optional one that is missing
  const [must, may] = [needed, optional].map((text) => text.split(" ").filter(Boolean));
  hold(value instanceof Map && must.every((key) => value.has(key)), `it lacks one of: ${needed}`);
  for (const key of value.keys()) hold(must.includes(key) || may.includes(key), `it has the unknown key '${key}'`);
  return [...must, ...may].map((key) => value.get(key) ?? null);
}
export function fraction(text, name, least = null) {
  const good = typeof text === "string" && /^-?\d{1,400}(\/[1-9]\d{0,399})?$/.test(text); const found = good ? Fraction.of(text) : null;
  hold(good && String(found) === text, `${name} is no fraction in lowest terms`);
  hold(least === null || found.compare(least) >= 0, `${name} is too small`); return found;
}
export function integer(value, name, low = -LARGEST, high = LARGEST) {
  hold(Number.isInteger(value) && low <= value && value <= high, `${name} is no whole number from ${low} to ${high}`); return value;
}
export function listed(value, name, length = null) {
  hold(Array.isArray(value) && (length === null || value.length === length), `${name} is no list, or of another length`); return value;
}
export function textOf(value, name) { hold(typeof value === "string" && value.length < 1 << 20, `${name} is no text`); return value; }
export function point(value, name) { return listed(value, name, 2).map((c) => BigInt(integer(c, name))); }
export function ranges(value, size, name) { // a set of numbers, as the bits of a whole one, out of the first and last of each run: ascending, runs apart
  hold(listed(value, name).length % 2 === 0, `${name} has an odd number of ends`); let [found, least] = [0n, 0];
  for (let k = 0; k < value.length; k += 2) {
    const first = integer(value[k], name, least, size - 1); const last = integer(value[k + 1], name, first, size - 1);
    found |= ((1n << BigInt(last - first + 1)) - 1n) << BigInt(first); least = last + 2;
  }
  return found;
}
const bit = (number) => 1n << BigInt(number);
const has = (mask, number) => ((mask >> BigInt(number)) & 1n) === 1n;
export function bits(mask) {
  const found = []; const digits = mask ? mask.toString(2) : "";
  for (let k = digits.length - 1; k >= 0; k -= 1) if (digits[k] === "1") found.push(digits.length - 1 - k); return found;
}
function pairsOf(value, size, name) {
  let before = [-1, -1];
  for (const pair of listed(value, name)) {
    const [i, j] = listed(pair, name, 2).map((one) => integer(one, name));
    hold(i >= 0 && i < j && j < size, `${name} are not pairs in ascending order`);
    hold(i > before[0] || (i === before[0] && j > before[1]), `${name} are not pairs in ascending order`); before = pair;
  }
  return value;
}
function split(term, key, size, otherwise = null) { // a term or part without a key, and the states that it says it is for under this key
  hold(term instanceof Map, "a term or part is no object"); const rest = new Map([...term].filter(([name]) => name !== key));
  return [rest, term.has(key) ? ranges(term.get(key), size, key) : otherwise];
}
// ---- bodies and tables (§4, §5) -----------------------------------------------------------------------------------
export const cross = (a, b) => a[0] * b[1] - a[1] * b[0];
const minus = (a, b) => [a[0] - b[0], a[1] - b[1]];
const isUpper = (v) => v[1] > 0n || (v[1] === 0n && v[0] > 0n);
const byPlace = (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : 0);
function ring(given) { // the corners of the convex hull of points, counter-clockwise
  const points = [...new Map(given.map((p) => [String(p), p])).values()].sort(byPlace); const found = [];
  for (const some of [points, [...points].reverse()]) {
    const half = [];
    for (const p of some) { while (half.length > 1 && cross(minus(half.at(-1), half.at(-2)), minus(p, half.at(-1))) <= 0n) half.pop(); half.push(p); }
    found.push(...half.slice(0, -1));
  }
  return found.length ? found : points;
}
function corners(vectors) { // the upper corners of the symmetric hull of vectors: above the first axis or on its positive half, in order
  const found = ring(vectors.flatMap(([x, y]) => [[x, y], [-x, -y]])).filter(isUpper);
  while (found.length && cross(found[0], found.at(-1)) < 0n) found.push(found.shift()); return found;
}
export class Body { // a symmetric polygon, a segment or a point, with whole corners
  constructor(upper) {
    hold(String(corners(upper)) === String(upper), "a body is not given by its upper corners"); this.upper = upper;
    this.flat = upper.length < 2; const ends = upper.length ? [...upper.slice(1), minus([0n, 0n], upper[0])] : [];
    // A wall is a normal and an offset: the norm is the largest |normal v| / offset.
    this.walls = this.flat
      ? upper.map((v) => [v, v[0] * v[0] + v[1] * v[1]])
      : upper.map((v, k) => [[ends[k][1] - v[1], v[0] - ends[k][0]], cross(v, ends[k])]);
    this.isPoint = this.walls.length === 0; this.area = this.flat ? 0n : this.walls.reduce((sum, [, offset]) => sum + offset, 0n);
  }
  spans(d) { // whether noise can reach a difference at all
    if (!this.flat) return true;
    return this.upper.length ? cross(this.upper[0], d) === 0n : d[0] === 0n && d[1] === 0n;
  }
  holds(d) { return this.spans(d) && this.walls.every(([n, offset]) => abs(n[0] * d[0] + n[1] * d[1]) <= offset); }
  widest(points) { // the largest norm of a difference of points; null where it is infinite
    if (!points.every((p) => this.spans(minus(p, points[0])))) return null;
    let found = ZERO;
    for (const [n, offset] of this.walls) {
      const heights = points.map(([x, y]) => n[0] * x + n[1] * y);
      const [low, high] = heights.reduce(([a, b], h) => [h < a ? h : a, h > b ? h : b], [heights[0], heights[0]]);
      const wide = new Fraction(high - low, offset);
      if (wide.compare(found) > 0) found = wide;
    }
    return found;
  }
  reaches(at, i, released) { return typeof released === "number" ? String(at[i]) === String(at[released]) : this.spans(minus(released, at[i])); }
}
class Table { // weights over 2**62 of releasing each of some places from each of them
  constructor(value, at) {
    const [rows, states] = fields(value, "table places");
    const own = listed(states, "places").map((i) => String(at[integer(i, "places", 0, at.length - 1)]));
    this.row = new Map(own.map((place, number) => [place, number]));
    hold(this.row.size === own.length && own.length > 0, "a table has a place twice");
    this.rows = listed(rows, "table", own.length).map((row) => {
      const weights = listed(row, "table", own.length).map((w) => fraction(w, "a weight", ZERO)); const sum = weights.reduce((a, b) => a + b.num, 0n);
      hold(sum === TOTAL && weights.every((w) => w.den === 1n), "a row is no law over 2**62");
      return weights.map((w) => w.num);
    });
    this.flat = true; this.isPoint = false;
  }
  check(edges, epsilon) { // every entry of every edge of two places, against a fraction that is at most e**epsilon
    let [term, limit] = [new Fraction(1n), new Fraction(1n)];
    for (let k = 1n; k < 200n; k += 1n) {
      const next = (term.num * epsilon.num * 2n ** 400n) / (term.den * epsilon.den * k); term = new Fraction(next, 2n ** 400n);
      limit = limit.plus(term);
    }
    if (epsilon.compare(whole(43)) >= 0) limit = new Fraction(TOTAL);
    for (const [i, j] of edges) {
      const [one, other] = [this.rows[this.row.get(i)], this.rows[this.row.get(j)]];
      for (let k = 0; k < one.length; k += 1) {
        const near = one[k] * limit.den <= other[k] * limit.num && other[k] * limit.den <= one[k] * limit.num;
        hold(near, "a table tells two joined states apart by more than epsilon");
      } } }
  reaches(at, i, released) {
    const column = this.row.get(String(at[released]));
    return column !== undefined && this.rows[this.row.get(String(at[i]))][column] > 0n;
  }
}
// ---- shared parts (§2, §3) ----------------------------------------------------------------------------------------
export class Places { // what is measured in each state: whole steps of a lattice, or the decimal texts of places that tables release
  constructor(value) {
    const [, unit, cell, at] = fields(value, "is unit cell at"); this.cell = fraction(cell, "cell", ZERO);
    this.unit = unit === null ? null : fraction(unit, "unit", new Fraction(1n, 10n ** 12n));
    hold(listed(at, "at").length >= 1 && at.length <= MOST_STATES, "there are too few states, or too many");
    const place = (one) => listed(one, "a place", 2).map((c) => textOf(c, "a place"));
    this.at = at.map((one) => (this.unit ? point(one, "a place") : place(one))); const decimal = /^-?[0-9.]{1,25}(e-?[0-9]{1,2})?$/;
    hold(this.unit || this.at.every((one) => one.every((c) => decimal.test(c))), "a place is none");
  }
}
export class Model { // which moves are possible; of probabilities nothing is said
  constructor(value) {
    const [, hash, size, chain, step, moves, start, stateOf, hours, zone] = fields(
      value, "is hash states chain step moves start", "state_of hours zone");
    hold(typeof hash === "string" && /^[0-9a-f]{16}$/.test(hash), "hash is none"); this.hash = hash;
    this.size = integer(size, "states", 1, MOST_STATES); integer(chain, "chain", this.size, MOST_STATES);
    this.step = step === null ? null : fraction(step, "step", new Fraction(1n, 1000n));
    const twins = listed(stateOf ?? [], "state_of", chain - this.size);
    this.twins = twins.map((state, k) => [bit(this.size + k), bit(integer(state, "state_of", 0, this.size - 1))]);
    const rows = (one) => listed(one, "moves", chain).map((row) => ranges(row, chain, "moves")); this.moves = listed(moves, "moves").map(rows);
    this.starts = listed(start, "start", this.moves.length).map((one) => ranges(one, chain, "start"));
    const some = this.moves.length && [...this.moves, this.starts].every((one) => one.every(Boolean));
    hold(some, "a state has no move, or nothing is possible at first"); const several = this.moves.length > 1;
    hold(several === (hours !== null) && several === (zone !== null), "hours do not go with the matrices");
    if (several) {
      listed(hours, "hours", 168).forEach((hour) => integer(hour, "hours", 0, this.moves.length - 1));
      const parts = { timeZone: textOf(zone, "zone"), weekday: "short", hour: "2-digit", hourCycle: "h23" };
      this.clock = new Intl.DateTimeFormat("en-US", parts);
    }
    this.hours = hours; this.known = new Map();
  }
  instant(slot) { // the microseconds from 1970 to the end of a slot
    hold(this.step, "the model has no step"); const found = whole(slot).times(this.step).times(whole(10 ** 6)).floor();
    hold(abs(found) < 2n * 10n ** 17n, "a slot lies beyond the calendar"); return found;
  }
  classOf(slot) { // which matrix leads to a slot: by the hour of the week, from Monday on, in which the step begins
    if (!this.clock) return 0;
    const begun = new Date(Number(this.instant(slot - 1) / 1000n));
    const told = Object.fromEntries(this.clock.formatToParts(begun).map(({ type, value }) => [type, value]));
    const day = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].indexOf(told.weekday);
    return this.hours[24 * day + Number(told.hour)];
  }
  ahead(possible, number) {
    const key = `${number}:${possible.toString(36)}`;
    if (!this.known.has(key)) { this.known.set(key, bits(possible).reduce((found, place) => found | this.moves[number][place], 0n)); }
    return this.known.get(key);
  }
  later(possible, slot, steps) {
    for (let done = 0; done < steps; done += 1) {
      hold(done < LONGEST_GAP, "a gap is too long to be followed"); const before = possible;
      possible = this.ahead(possible, this.classOf(slot + done + 1));
      if (possible === before && !this.clock) break; // nothing changes any more
    }
    return possible;
  }
  states(possible) {
    let found = possible & (bit(this.size) - 1n);
    for (const [place, state] of this.twins) if (possible & place) found |= state; return found;
  }
  without(possible, states) { for (const [place, state] of this.twins) if (states & state) possible &= ~place; return possible & ~states; }
}
class Policy { // which states must not be told apart: near cells, groups all of whose states are joined, and listed pairs
  constructor(value, size) {
    const [, terms, open] = fields(value, "is terms", "open"); this.size = size; this.all = bit(size) - 1n;
    this.open = ranges(open ?? [], size, "open");
    [this.groups, this.near, this.beside, this.byVector] = [[], [], new Array(size).fill(0n), new Map()];
    const pairs = new Set();
    for (const term of listed(terms, "terms")) {
      const [rest, within] = split(term, "within", size, this.all);
      if (rest.has("groups")) {
        const [groups] = fields(rest, "groups"); this.groups.push(...listed(groups, "groups").map((one) => ranges(one, size, "groups") & within));
      } else if (rest.has("pairs")) {
        for (const [i, j] of pairsOf(fields(rest, "pairs")[0], size, "pairs")) { if (has(within, i) && has(within, j)) pairs.add(i * size + j); }
      } else for (const pair of this.nearPairs(rest, within)) pairs.add(pair);
    }
    this.pairs = [...pairs].map((one) => [Math.floor(one / size), one % size]);
    for (const [i, j] of this.pairs) { this.beside[i] |= bit(j); this.beside[j] |= bit(i); }
    const groups = this.groups.filter((group) => group & (group - 1n));
    const joined = bits(this.open).some((i) => this.beside[i]) || groups.some((group) => group & this.open);
    hold(!joined, "an open state has an edge");
  }
  nearPairs(term, within) { // pairs of cells that hold two places at most so far apart; of points, where cells have the side 0
    let [radius, cell, side, first, cells] = fields(term, "near cell side first at");
    [radius, cell] = [fraction(radius, "near", ZERO), fraction(cell, "cell", ZERO)];
    side = listed(side, "side", 2).map((one) => fraction(one, "side", new Fraction(1n, 10n ** 9n)));
    cells = listed(cells, "at", this.size).map((one) => point(one, "at")); first = listed(first, "first", 2).map((one) => fraction(one, "first"));
    this.near.push({ radius, cell, side, within, first, cells }); const where = new Map();
    for (const i of bits(within)) where.set(String(cells[i]), [...(where.get(String(cells[i])) ?? []), i]);
    const reach = side.map((one) => radius.plus(cell).over(one).floor());
    const gap = (k, axis) => { const found = whole(abs(k)).times(side[axis]).minus(cell); return found.compare(ZERO) > 0 ? found : ZERO; };
    hold(reach[0] * reach[1] < 10n ** 7n, "a radius reaches over too many cells"); const offsets = [];
    for (let x = -reach[0]; x <= reach[0]; x += 1n) {
      for (let y = -reach[1]; y <= reach[1]; y += 1n) {
        const [a, b] = [gap(x, 0), gap(y, 1)];
        if (a.times(a).plus(b.times(b)).compare(radius.times(radius)) <= 0) offsets.push([x, y]);
      } }
    const found = [];
    for (const i of bits(within)) {
      for (const [x, y] of offsets) {
        const others = where.get(String([cells[i][0] + x, cells[i][1] + y])) ?? [];
        for (const j of others) if (i < j) found.push(i * this.size + j);
      } }
    return found;
  }
  vectors(members, at) { // differences of measurements whose symmetric hull is that of all edges between members
    if (!this.byVector.has(at)) {
      const found = new Map();
      for (const [i, j] of this.pairs) {
        const d = minus(at[i], at[j]); const up = isUpper(d) ? d : minus([0n, 0n], d);
        if (!found.has(String(up))) found.set(String(up), [up, []]);
        found.get(String(up))[1].push([i, j]);
      }
      this.byVector.set(at, [...found.values()]);
    }
    const inside = new Uint8Array(this.size);
    for (const i of bits(members)) inside[i] = 1;
    const some = this.byVector.get(at).filter(([, pairs]) => pairs.some(([i, j]) => inside[i] && inside[j])); const found = some.map(([d]) => d);
    for (const group of this.groups) {
      const tips = ring(bits(group & members).map((i) => at[i])); tips.forEach((p, k) => tips.slice(k + 1).forEach((q) => found.push(minus(p, q))));
    }
    return found;
  }
  edges(members) { // all edges between members, one by one
    const found = this.pairs.filter(([i, j]) => has(members, i) && has(members, j));
    for (const group of this.groups) {
      const inside = bits(group & members); inside.forEach((i, k) => inside.slice(k + 1).forEach((j) => found.push([i, j])));
    }
    return found;
  }
  leaves(part, others) { // whether an edge leads from a part to other states
    if (!others) return false;
    return this.groups.some((group) => group & part && group & others) || bits(part).some((i) => this.beside[i] & others);
  }
}
class Noise { // bodies or tables, each for some states, and the edges that were added to the policy
  constructor(value, places) {
    const [, parts, added] = fields(value, "is parts", "added");
    [this.places, this.at, this.checked, this.around] = [places, places.at, new Map(), new Map()];
    this.parts = listed(parts, "parts").map((part) => {
      const [rest, states] = split(part, "states", this.at.length);
      const tips = () => listed(fields(rest, "body")[0], "body").map((v) => point(v, "a corner"));
      const body = rest.has("table") ? new Table(rest, this.at) : new Body(tips());
      const fits = body instanceof Table === (places.unit === null) || body.isPoint;
      hold(fits, "a table on a lattice, or a body where tables release");
      return [states, body];
    });
    this.added = pairsOf(added ?? [], this.at.length, "added");
  }
  /** What holds of every draw from these possible states: the least degree, kappa, and who is hidden among whom. */
  check(possible, policy, apart, allowKnown) {
    const key = possible.toString(36);
    if (!this.checked.has(policy)) this.checked.set(policy, new Map());
    const known = this.checked.get(policy);
    if (!known.has(key)) known.set(key, this.checkAnew(possible, policy, apart, allowKnown));
    return known.get(key);
  }
  checkAnew(possible, policy, apart, allowKnown) {
    const { at, added } = this; const ends = added.flat().reduce((found, i) => found | bit(i), 0n);
    hold(!(ends & ~possible), "an added edge leaves the possible states"); const opened = policy.open & possible & ~ends;
    const known = !(possible & (possible - 1n)) && !opened; hold(!known || allowKnown, "one state only is possible, and nothing hides it");
    let covered = 0n; const [hidden, tables] = [new Map(), []];
    for (const [states, body] of this.parts) {
      const members = states ?? possible; const fits = members && !(members & ~possible) && !(members & covered);
      hold(fits, "the parts of the noise do not fit the possible states"); covered |= members;
      const leaves = policy.leaves(members, possible & ~members); hold(!leaves, "two states that the policy joins are released by different noise");
      const own = added.filter(([i]) => has(members, i));
      hold(own.every(([, j]) => has(members, j)), "an added edge leads from one part of the noise to another"); const inside = bits(members);
      let near = inside.map((i) => bit(i));
      if (body instanceof Table) {
        hold(inside.every((i) => body.row.has(String(at[i]))), "a state's place is not in its table");
        const edges = [...policy.edges(members), ...own]; const place = new Map(inside.map((i, k) => [i, k]));
        for (const [i, j] of edges) { near[place.get(i)] |= bit(j); near[place.get(j)] |= bit(i); }
        tables.push([body, edges.map(([i, j]) => [String(at[i]), String(at[j])])]);
      } else if (this.places.unit === null) {
        hold(!own.length && !policy.edges(members).length, "two states that the policy joins are released as they are");
      } else {
        const needed = corners([...policy.vectors(members, at), ...own.map(([i, j]) => minus(at[i], at[j]))]);
        hold(needed.every((d) => body.holds(d)), "a body is too small: two states that must not be told apart differ by more");
        hold(String(needed) === String(body.upper) || own.length, "a body is larger than its edges ask for"); const around = this.aroundAll(body);
        near = inside.map((i) => around[i] & members & ~opened);
      }
      inside.forEach((i, k) => {
        hold(!has(opened, i) || body.isPoint, `the open state ${i} is in the noise of others`);
        if (has(opened, i) || known) return;
        hold(near[k] & ~bit(i), `state ${i} is hidden among no other one`); hidden.set(i, near[k]);
      }); }
    hold(covered === possible, "a possible state has no noise");
    hold(this.parts.length === 1 || apart || opened, "several parts of noise without components");
    const one = this.parts.length === 1 && this.places.unit;
    const kappa = one ? this.parts[0][1].widest(ring(bits(possible).map((i) => at[i]))) : null;
    const degrees = [...hidden.values()].map((others) => bits(others).length);
    return { least: degrees.length ? degrees.reduce((a, b) => Math.min(a, b)) : 1, kappa, hidden, known, tables };
  }
  aroundAll(body) { // of each state the states that differ from it by a vector of the body, itself included
    if (!this.around.has(body)) {
      const { at } = this; const everything = body.widest(ring(at)); const everyone = everything !== null && everything.compare(whole(1)) <= 0;
      const found = at.map((_, i) => (everyone ? bit(at.length) - 1n : bit(i)));
      const reach = [0, 1].map((k) => body.upper.reduce((most, v) => (abs(v[k]) > most ? abs(v[k]) : most), 1n));
      const block = (p) => p.map((c, k) => new Fraction(c, reach[k]).floor()); const blocks = new Map();
      if (!everyone) at.forEach((p, i) => blocks.set(String(block(p)), [...(blocks.get(String(block(p))) ?? []), i]));
      for (const [name, some] of blocks) {
        const [x, y] = name.split(",").map(BigInt);
        for (const a of [-1n, 0n, 1n]) {
          for (const b of [-1n, 0n, 1n]) {
            for (const j of blocks.get(String([x + a, y + b])) ?? []) {
              for (const i of some) if (i !== j && body.holds(minus(at[j], at[i]))) found[i] |= bit(j);
            } } } }
      this.around.set(body, found);
    }
    return this.around.get(body);
  }
  left(released, possible) { // the possible states that could have given a release
    let found = 0n;
    for (const [states, body] of this.parts) {
      const members = states ?? possible;
      if (!body.flat) found |= members;
      else for (const i of bits(members)) if (body.reaches(this.at, i, released)) found |= bit(i);
    }
    return found;
  }
}
// ---- releases, one after another (§6) -----------------------------------------------------------------------------
class Window { // the sum of what was spent in the last so many steps
  constructor(steps) { [this.steps, this.spent, this.sum] = [steps, [], ZERO]; }
  add(slot, epsilon) {
    this.spent.push([slot, epsilon]); this.sum = this.sum.plus(epsilon);
    while (this.spent[0][0] <= slot - this.steps) this.sum = this.sum.minus(this.spent.shift()[1]);
    return this.sum;
  }
}
class Query { // one question about a person, as its settings say that it is answered
  constructor(value, parts, model) {
    const [name, rank, text, places] = fields(value, "query rank settings places");
    [this.name, this.text, this.possible, this.past] = [name, text, 0n, []];
    this.rank = integer(rank, "rank", 0, 64); this.said = parse(textOf(text, "settings"), Fraction.of); this.places = parts.get(places, Places);
    const [mechanism, schedule] = [this.said.get("mechanism"), this.said.get("schedule") ?? new Map()];
    const exact = ["lattice", "optimal", "graph-exponential"].includes(mechanism); hold(exact, "noise of real numbers has no exact proof");
    const spacing = mechanism === "lattice" ? String(Fraction.of(this.said.get("spacing"))) : "null";
    hold(String(this.places.unit) === spacing, "the lattice is not that of the settings");
    hold(this.places.at.length === model.size, "places and model differ in size"); this.epsilon = this.said.get("epsilon");
    this.most = schedule.get("window_epsilon") ?? null;
    if (this.most) { const steps = Number(schedule.get("window_seconds").over(model.step).ceil()); this.budget = new Window(Math.max(1, steps)); }
  }
}
const NOT_SAID = { delta: "that what delta leaves out has at most that mass", caps: "that the caps on events are kept (dphmm-verify-caps checks that)",
  schedule: "that when and how much is drawn follows from the belief alone, as the schedule says" };
class Person { // what is possible and what was spent, followed from one release about a person to the next
  constructor(value, parts, accounts, report, before) {
    const [name, model, policy, queries, limits, goesOn] = fields(value, "begin model policy queries", "limits goes_on");
    [this.name, this.report] = [textOf(name, "begin"), report];
    this.model = parts.get(model, Model); this.policy = parts.get(policy, Policy, this.model.size);
    const found = listed(queries, "queries").map((one) => new Query(one, parts, this.model));
    this.queries = new Map(found.map((one) => [one.name, one]));
    hold(found.length && this.queries.size === found.length, "there is no query, or two of one name");
    const ranks = new Set(found.map((one) => one.rank)); hold([...ranks].every((rank) => rank < ranks.size), "ranks are not counted from 0");
    [this.ranks, this.count, this.slot, this.moment] = [ranks.size, 0, null, new Map()];
    this.day = this.model.step ? Number(whole(86400).over(this.model.step).ceil()) : null;
    const [most, inWindow, steps] = limits ? fields(limits, "epsilon window_epsilon window_steps") : [null, null, null];
    [this.most, this.inWindow] = [most, inWindow].map((one) => (one === null ? null : fraction(one, "a limit", ZERO)));
    this.window = inWindow === null ? null : new Window(integer(steps, "window_steps", 1));
    if (!accounts.has(name)) accounts.set(name, { count: 0, sums: new Map(), days: new Map() });
    this.account = accounts.get(name); this.forgotten = this.account.count;
    [this.limits, this.ranked] = [canonical(limits), String(found.map((one) => `${one.name} ${one.rank}`).sort())];
    if (goesOn !== null) this.goOn(goesOn, before);
    for (const one of found) {
      for (const [key, what] of Object.entries(NOT_SAID)) {
        const said = one.said.get(key);
        if (said instanceof Fraction ? said.num : Array.isArray(said) ? said.length : said) report.not.add(what);
      }
      this.checkPolicy(one);
    } }
  goOn(goesOn, before) { // from what was believed of the person, and spent, under what was agreed on before
    const same = before && ["name", "model", "limits", "ranked"].every((key) => before[key] === this[key]);
    hold(goesOn === true && same && before.slot !== null, "it goes on from another person, model, limits or queries");
    for (const key of ["support", "slot", "moment", "window", "forgotten"]) this[key] = before[key];
    for (const [name, one] of this.queries) {
      one.past = before.queries.get(name).past; if (one.budget) for (const spent of one.past) one.budget.add(...spent);
    } }
  checkPolicy(query) { // compare a policy's text with its edges, where the text alone says which they are (§3)
    const [text, { near, groups, open, all }, unit] = [query.said.get("policy"), this.policy, query.places.unit];
    const radius = near.length || query.places.cell.num ? /^utility:([0-9.e+-]+)km(:places)?$/.exec(text) : null;
    if (radius) hold(near.length === 1 && !groups.length && !open, "the policy is not that of the settings");
    if (text === "complete") hold(!near.length && groups.length === 1 && groups[0] === all && !open, "the policy is not that of the settings");
    if (!radius) {
      this.report.policies.add(text === "complete" ? "any two" : "those listed");
      if (text !== "complete") this.report.not.add(`that the edges listed are those of the policy '${text.slice(0, 60)}'`);
      return;
    }
    const one = near[0]; hold(one.radius.compare(Fraction.of(radius[1])) === 0 && one.within === all, "the radius is not that of the settings");
    hold(!one.cell.compare(radius[2] ? query.places.cell : ZERO), "the cells are not those of the settings");
    for (const k of unit ? [0, 1] : []) {
      query.places.at.forEach((place, i) => {
        const off = whole(place[k]).times(unit).minus(whole(one.cells[i][k]).times(one.side[k])).minus(one.first[k]);
        const most = unit.times(new Fraction(500_001n, 10n ** 6n)); hold(off.abs().compare(most) <= 0, "the cells are not where the places are");
      }); }
    const what = radius[2] && one.cell.num ? "cells of places" : "states whose points are";
    this.report.policies.add(`${what} at most ${radius[1]} km apart`);
  }
  step(value, parts, row) {
    const [number, slot, name, epsilon, total, day, noise, z, come, gone, why] = fields(
      value, "step slot query epsilon sum day", "noise z in out withheld events caps");
    const { model, report, account, moment } = this; const query = this.queries.get(textOf(name, "query"));
    hold(query, "the query is none of this person's");
    hold(integer(number, "step") === this.count, `the release has the number ${number}, and ${this.count} is missing`);
    hold(this.slot === null || integer(slot, "slot") >= this.slot, "time goes back");
    if (this.slot === null) this.support = new Array(this.ranks).fill(model.starts[model.classOf(integer(slot, "slot"))]);
    else if (slot > this.slot) { moment.clear(); this.support = this.support.map((one) => model.later(one, this.slot, slot - this.slot)); }
    const inTurn = !moment.has(name) && [...moment.keys()].every((one) => this.queries.get(one).rank <= query.rank);
    hold(inTurn, "a query is answered twice, or out of turn"); this.slot = slot;
    this.count += 1; const [put, out] = [come, gone].map((one) => ranges(one ?? [], model.size, "in or out"));
    const fits = !(put & query.possible) && (out & query.possible) === out; hold(fits, "in and out do not fit what was possible before");
    query.possible = (query.possible | put) & ~out; const { possible } = query; const follows = model.states(this.support[query.rank]);
    hold(possible && !(possible & ~follows), "a state is possible that moves and earlier releases rule out"); const delta = query.said.get("delta");
    hold(possible === follows || (delta && delta.num && why === null), "a possible state is left out");
    const eps = fraction(epsilon, "epsilon", ZERO); let facts = { possible, hidden: new Map() };
    if (why !== null) {
      hold(!eps.num && z === null && noise === null, "a release that was withheld says more than why");
      const [plan, caps] = [query.said.get("schedule"), query.said.get("caps")?.length];
      const may = { target: plan, budget: plan || this.most || this.window, caps, partners: query.rank };
      hold(Object.hasOwn(may, why) && may[why], "nothing in the settings lets a release be withheld for that");
    } else {
      hold(eps.num > 0n && eps.compare(query.epsilon) <= 0, "epsilon is above that of the settings, or none");
      const found = parts.get(noise, Noise, query.places); const apart = query.said.get("calibration") === "component";
      const planned = query.said.get("schedule") || query.said.get("caps")?.length;
      if (eps.compare(query.epsilon) < 0 && !planned) report.not.add("that smaller budgets were chosen by public things alone");
      facts = { possible, noise: found, ...found.check(possible, this.policy, apart, query.said.get("allow_known")) };
      for (const [table, edges] of facts.tables) table.check(edges, eps);
      facts.z = query.places.unit ? point(z, "z") : integer(z, "z", 0, model.size - 1); const left = found.left(facts.z, possible);
      hold(left, "no possible state could have given this release");
      for (let rank = query.rank; rank < this.ranks; rank += 1) { this.support[rank] = model.without(this.support[rank], possible & ~left); }
      report.known += facts.known ? 1 : 0;
      if (found.added.length) report.not.add("that partners of states without an edge follow from public things alone");
    }
    for (let [state, others] of facts.hidden) {
      for (const before of moment.values()) others &= before.get(state) ?? others;
      hold(others & ~bit(state), `state ${state} is hidden in each release of the moment, and among no other one in all`);
    }
    moment.set(name, facts.hidden); account.count += 1;
    for (let rank = query.rank; rank < this.ranks; rank += 1) {
      account.sums.set(rank, (account.sums.get(rank) ?? ZERO).plus(eps));
      if (this.day && !account.days.has(rank)) account.days.set(rank, new Window(this.day));
      if (this.day) account.days.get(rank).add(slot, eps);
    }
    const [sum, most] = [query.rank, this.ranks - 1].map((rank) => account.sums.get(rank));
    hold(fraction(total, "sum").compare(sum) === 0, `the sum so far is ${sum}`);
    hold(day === (this.day ? String(account.days.get(query.rank).sum) : null), "the sum of the last day is another");
    hold(this.most === null || most.compare(this.most) <= 0, "the limit of all releases is passed");
    hold(!this.window || this.window.add(slot, eps).compare(this.inWindow) <= 0, "the limit of a window is passed");
    query.past.push([slot, eps]);
    hold(!query.budget || query.budget.add(slot, eps).compare(query.most) <= 0 || !eps.num, "the budget of the schedule's window is passed"); report.steps += 1;
    if (most.compare(report.spent) > 0) report.spent = most;
    if (row) this.checkRow(row, query, eps, why, facts, sum, day);
  }
  checkRow(row, query, eps, why, facts, sum, day) { // compare a published row with what follows from the certificate (§7)
    const { noise } = facts; const { unit } = query.places;
    const same = {
      user: this.name, withheld: String(why !== null), withheld_for: why ?? "", mechanism: query.said.get("mechanism"),
      exact: "true", possible_states: String(bits(facts.possible).length), forgotten_releases: String(this.forgotten),
      model: this.model.hash, settings: createHash("sha256").update(query.text, "utf8").digest("hex").slice(0, 16),
    };
    const near = { epsilon: eps, epsilon_so_far: sum, epsilon_last_day: day && Fraction.of(day), x_km: null, y_km: null };
    if (noise) {
      const told = unit ? facts.z.map((c) => whole(c).times(unit)) : query.places.at[facts.z].map((c) => Fraction.of(c));
      [near.x_km, near.y_km] = told;
      Object.assign(same, { already_known: String(facts.known), edges_added: String(noise.added.length) });
    }
    if (noise && unit && noise.parts.length === 1) {
      const known = (this.report.errors.get(noise) ?? new Map()); this.report.errors.set(noise, known);
      if (!known.has(String(eps))) known.set(String(eps), row.expected_error_m);
      Object.assign(same, { least_protection: String(facts.least), expected_error_m: known.get(String(eps)) });
      near.hull_area_km2 = whole(noise.parts[0][1].area).times(unit).times(unit); near.constrained_factor = facts.kappa ?? Infinity;
    }
    for (const [column, wanted] of Object.entries(same)) {
      hold(row[column] === wanted, `the row says ${column} ${row[column]}, and not ${wanted}`);
      if (column !== "expected_error_m") this.report.columns.add(column);
    }
    for (const [column, wanted] of Object.entries(near)) {
      const text = row[column] || (wanted === Infinity ? "inf" : "nan");
      const [found, most] = [text === "inf" ? Infinity : Number(text), wanted instanceof Fraction ? wanted.toNumber() : wanted];
      const rounding = ["hull_area_km2", "constrained_factor"].includes(column) ? 1e-9 : 0;
      const close = found === most || Math.abs(found - most) <= rounding * Math.max(Math.abs(found), Math.abs(most));
      hold(most === null ? text === "nan" : close, `the row says ${column} ${row[column]}, and not ${wanted}`); this.report.columns.add(column);
    }
    const told = /^(.*?)(?:\.(\d{1,6}))?Z$/.exec(row.time ?? "");
    const time = told && BigInt(Date.parse(`${told[1]}Z`)) * 1000n + BigInt((told[2] ?? "").padEnd(6, "0"));
    hold(told && time === this.model.instant(this.slot), `the row is of ${row.time}, and not of this slot`); this.report.columns.add("time");
  }
}
export class Parts { // what lines share, by digest; made once it is used
  constructor() { [this.values, this.made] = [new Map(), new Map()]; }
  add(value) {
    const [digest, part] = fields(value, "part value"); const found = createHash("sha256").update(canonical(part), "utf8").digest("hex");
    hold(found === digest, "the digest is not that of the value"); hold(!this.values.has(digest.slice(0, 16)), "the part was there before");
    this.values.set(digest.slice(0, 16), part);
  }
  get(name, kind, around = null) {
    hold(typeof name === "string" && this.values.has(name), `no part ${String(name).slice(0, 20)} was given before`);
    const value = this.values.get(name);
    hold(value instanceof Map && value.get("is") === kind.name.toLowerCase(), `the part ${name} is of another kind`);
    if (!this.made.has(name)) this.made.set(name, new Map());
    const made = this.made.get(name);
    if (!made.has(around)) made.set(around, new kind(value, around));
    return made.get(around);
  }
}
/** Check the lines of a certificate; what is refused says in which line. Rows are lists of objects, by person. */
export function verify(lines, rows = null) {
  const report = { steps: 0, people: new Set(), spent: ZERO, policies: new Set(), not: new Set(), columns: new Set() };
  Object.assign(report, { errors: new Map(), known: 0 }); const waiting = new Map([...(rows ?? [])].map(([name, some]) => [name, [...some]]));
  const [parts, accounts] = [new Parts(), new Map()]; let [person, ended, number] = [null, false, 0];
  try {
    for (const line of lines) {
      number += 1; hold(line.length <= LONGEST_LINE && !ended, "the line is too long, or follows the end"); const value = parse(line);
      const is = (key) => value instanceof Map && value.has(key);
      if (number === 1) hold(is("certificate") && canonical(value) === '{"certificate":1}', "it begins no certificate of a known format");
      else if (is("part")) parts.add(value);
      else if (is("begin")) {
        person = new Person(value, parts, accounts, report, person); report.people.add(person.name);
      } else if (is("step")) {
        const matched = rows !== null && value.get("query") === "main";
        hold(person && (!matched || waiting.get(person.name)?.length), "there is no published row for this release");
        person.step(value, parts, matched ? waiting.get(person.name).shift() : null);
      } else { ended = fields(value, "end")[0] === report.steps; hold(ended, `it ends with another number of releases than ${report.steps}`); }
    }
    hold(ended, "the end is missing"); hold([...waiting.values()].every((some) => !some.length), "published rows have no release here");
  } catch (problem) {
    if (problem instanceof Refused) throw new Refused(`line ${number}: ${problem.message}`);
    if (problem instanceof TypeError || problem instanceof RangeError || problem instanceof SyntaxError) {
      throw new Refused(`line ${number}: it is malformed (${problem.message})`);
    }
    throw problem;
  }
  return report;
}
// ---- files and words (§8) -----------------------------------------------------------------------------------------
export function records(text) { // the records of a CSV: lists of texts
  const [found, cell] = [[[]], /"((?:[^"]|"")*)"(,|\r?\n|$)|([^,\r\n]*)(,|\r?\n|$)/y];
  while (cell.lastIndex < text.length) {
    const [, quoted, end, plain, otherEnd] = cell.exec(text); found.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if ((end ?? otherEnd) !== ",") found.push([]);
  }
  return found.filter((one) => one.length);
}
export function readRows(text, isGeojson = false) { // each person's published rows, in their order, as texts by column
  let rows;
  if (isGeojson) {
    const told = (value) => (value === null ? "" : String(value)); const features = parse(text, (number) => number).get("features");
    rows = features.map((one) => Object.fromEntries([...one.get("properties")].map(([name, value]) => [name, told(value)])));
  } else { const [head, ...rest] = records(text); rows = rest.map((cells) => Object.fromEntries(head.map((name, k) => [name, cells[k]]))); }
  return rows.reduce((found, row) => found.set(row.user, [...(found.get(row.user) ?? []), row]), new Map());
}
export function linesOf(text) { return text.replace(/\n$/, "").split("\n"); } // the lines of a file, without an empty last one
function say(report, rows) {
  const columns = [...report.columns].sort(); const all = new Set([...(rows?.values() ?? [])].flat().flatMap(Object.keys));
  const others = [...all].filter((name) => !report.columns.has(name)).sort();
  const people = `${report.people.size} ${report.people.size === 1 ? "person" : "people"}`;
  const but = report.known ? `, but at ${report.known} releases with one possible state` : "";
  const yes = [`${report.steps} releases about ${people}, and none is missing; about one person epsilon ${report.spent.toNumber()} at most`,
    "possible states follow from the moves that the model allows and from earlier releases, and none is missing",
    `states that the policy joins (${[...report.policies].sort().join(", ")}) have a ratio of at most e^epsilon at every output`,
    `every possible state that is not open is hidden among at least two${but}`, "budgets, sums, windows and limits"];
  const no = ["that noise was drawn by these laws from uniform random bits, around the person's true state",
    "that people move as the model allows, and that the model was learned from others", ...[...report.not].sort(),
    "that moves and first states are those of the model's file"];
  if (rows) yes.push(`published rows are these releases, in ${columns.join(", ")}`);
  no.push(rows ? `that other columns follow from the belief, and degrees from kilometres: ${others.join(", ")}` : "published rows: none were given");
  for (const [title, some] of [["VERIFIED", yes], ["NOT VERIFIED", no]]) console.log([title, ...some].join("\n  - "));
}
function main(files) {
  try {
    if (files.length < 1 || files.length > 2) throw new Error("usage: dphmm-verify.mjs CERTIFICATE [RELEASES.csv|.geojson]");
    const rows = files[1] ? readRows(readFileSync(files[1], "utf8"), files[1].endsWith(".geojson")) : null;
    say(verify(linesOf(readFileSync(files[0], "utf8")), rows), rows); return 0;
  } catch (problem) {
    console.log(`${problem instanceof Refused ? "REFUSED" : "cannot be read"}: ${files[0]}: ${problem.message}`);
    return problem instanceof Refused ? 1 : 2;
  }
}
if (process.argv[1] && existsSync(process.argv[1]) && realpathSync(process.argv[1]) === realpathSync(fileURLToPath(import.meta.url))) process.exitCode = main(process.argv.slice(2));
