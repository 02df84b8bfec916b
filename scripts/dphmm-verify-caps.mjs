#!/usr/bin/env node
// Checks that caps on events are kept in a certificate of private releases, whatever the noise would have drawn: a second verifier beside
// scripts/dphmm-verify-caps, out of the same specification (docs/reference/certificate_caps.md; '§' is a section there), in another language.
// Whole numbers and fractions alone: what is rounded is rounded to both sides. It needs Node's standard library and its neighbour
// dphmm-verify.mjs, whose reading of lines, values, places, bodies and models without probabilities it shares.
// Usage: dphmm-verify-caps.mjs CERTIFICATE [--seconds 3600]
// Exit codes: 0 all that is checked holds, 1 something is refused, 2 the file does not read.
import { createHash } from "node:crypto";
import { closeSync, existsSync, openSync, readSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import {
  Body, Fraction, LONGEST_LINE, Model, Parts, Places, Refused, TOTAL, ZERO, bits, canonical, cross, fields, fraction, gcd, hold, integer, listed, parse, point,
  ranges, textOf,
} from "./dphmm-verify.mjs";
export { Refused };
const [BITS, ROUND, DEPTH, WIDE, DIGITS, LONGEST, WEEK, MEBIBYTES] = [320n, 60n, 64n, 384n, 194, 1_000_000, 604_800n, 4096];
const ONE = 1n << BITS;
const VALUES = new Map([..."0123456789abcdefghijklmnopqrstuvwxyz"].map((sign, value) => [sign, BigInt(value)]));
const whole = (number) => new Fraction(BigInt(number));
const ceil = (value, shift) => -(-value >> shift); // shifts of a BigInt round down
const largest = (some, least = some[0]) => some.reduce((a, b) => (a > b ? a : b), least);
const sumOf = (some) => some.reduce((a, b) => a + b, 0n);
const bitLength = (number) => number.toString(2).length * (number > 0n);
// ---- values -------------------------------------------------------------------------------------------------------
function pairs(value, name, length = null) {
  hold(listed(value, name, length === null ? null : 2 * length).length % 2 === 0, `${name} is no list of pairs`);
  return Array.from({ length: value.length / 2 }, (_, k) => [value[2 * k], value[2 * k + 1]]);
}
function doubles(value, length, name) { // doubles as pairs of whole numbers m, k: m / 2**k in lowest terms
  return pairs(value, name, length).map(([m, k]) => {
    const [most, odd] = [1n << BigInt(integer(k, name, 0, 1074)), integer(m, name, 0) % 2 === 1];
    hold((odd || k === 0) && BigInt(m) <= most, `${name} is not in lowest terms, or above 1`); return [BigInt(m), BigInt(k)];
  });
}
const members = (value, size, name) => bits(ranges(value, size, name));
// ---- e**-x, rounded to either side (§3) ---------------------------------------------------------------------------
function root(shift, up) { // e**-(2**-shift): the series, whose remainder is less than the last term
  let term = 1n << (BITS + 64n); let total = term;
  for (let k = 1n; k < 90n; k += 1n) { term /= k << shift; total += k % 2n ? -term : term; }
  return (total >> 64n) + (up ? 2n : -2n);
}
const TABLES = [false, true].map((up) => [0n, 12n, 24n, 36n, 48n, 60n].map((shift) => {
  const [found, first] = [[ONE], root(shift, up)];
  while (found.length < (shift ? 4096 : 1024)) { const next = found.at(-1) * first; found.push(up ? ceil(next, BITS) : next >> BITS); }
  return found;
}));
const [UPPER, LOWER] = [2 ** 24, (1n << 36n) - 1n];
function power(x, up) { // a bound on e**-(x / 2**60), of a whole number x from 0 on
  const tables = TABLES[Number(up)];
  if (x >> 70n) return up ? tables[0][1023] : 0n;
  const [high, low] = [Number(x >> 36n), Number(x & LOWER)]; let found = tables[0][Math.floor(high / UPPER)];
  const digits = [(high % UPPER) >> 12, high % 4096, Math.floor(low / UPPER), (low % UPPER) >> 12, low % 4096];
  for (let k = 0; k < 5; k += 1) {
    if (digits[k]) { const next = found * tables[k + 1][digits[k]]; found = up ? ceil(next, BITS) : next >> BITS; }
  }
  return found;
}
function raised(epsilon, distance, up) { // a bound on e**-(epsilon distance)
  const [top, low] = [(epsilon.num * distance.num) << ROUND, epsilon.den * distance.den]; return power(up ? top / low : (top + low - 1n) / low, up);
}
// ---- bodies, and cells of outputs (§4) ----------------------------------------------------------------------------
const opposite = ([x, y]) => [-x, -y];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
class Ring extends Body { // a body with all its corners, and the wall that follows each
  constructor(upper) {
    super(upper); this.corners = [...upper, ...upper.map(opposite)];
    this.sides = [...this.walls, ...this.walls.map(([n, offset]) => [opposite(n), offset])];
  }
  norm(d) { return this.sides.map(([n, offset]) => new Fraction(dot(n, d), offset)).reduce((a, b) => (a.compare(b) >= 0 ? a : b), ZERO); }
  total(epsilon, up) { // a bound on the sum of e**-(epsilon norm) over all lattice points of the span, unimodular cone by cone
    const more = up ? 1n : 0n;
    if (this.isPoint) return ONE;
    if (this.flat) { const x = raised(epsilon, new Fraction(1n, gcd(...this.upper[0])), up); return ((ONE + x) * ONE) / (ONE - x) + more; }
    let found = ONE;
    for (const [k, [n, offset]] of this.sides.entries()) {
      const primitive = (v) => v.map((c) => c / gcd(...v)); let p = primitive(this.corners[k]);
      const end = primitive(this.corners[(k + 1) % this.corners.length]);
      while (cross(p, end)) { // q has determinant 1 with p, and lies between it and the end, next to it
        const [s, r] = bezout(...p); const back = new Fraction(cross([-r, s], end), cross(p, end)).floor(); const q = [-r - back * p[0], s - back * p[1]];
        const [one, other] = [p, q].map((v) => raised(epsilon, new Fraction(dot(n, v), offset), up));
        found += (one * ONE * ONE) / ((ONE - one) * (ONE - other)) + more; p = q;
      }
    }
    return found;
  }
}
class Fan { // all outputs about some places, none off another's span, in sectors about their middle
  constructor(body, places) {
    [this.body, this.places, this.known, this.epsilon, this.rows] = [body, places, new Map(), null, new Map()];
    const middle = [0, 1].map((k) => largest(places.map((one) => one[k])) - largest(places.map((one) => -one[k])));
    const scale = body.sides.reduce((found, [, offset]) => (found / gcd(found, offset)) * offset, 1n); // its least common multiple with all offsets
    const heights = places.map(([x, y]) => body.sides.map(([n, offset]) => dot(n, [2n * x - middle[0], 2n * y - middle[1]]) * (scale / offset)));
    this.reach = largest(heights.flat()); this.under = (2n * scale * scale) << DEPTH; this.most = (this.reach * scale) << DEPTH;
    this.heights = heights.map((row) => row.map((height) => (height * scale) << DEPTH));
    this.falls = body.corners.map((v) => body.sides.map(([n, offset]) => (offset - dot(n, v)) * (scale / offset) * this.reach));
  }
  distances(corner) { // ||z - f(s)|| - ||z - m|| + R of each place, times `under`, at a corner: how far along which rays, null for infinity
    const falls = this.body.sides.map((_, wall) => corner.reduce((sum, [ray, far]) => {
      const fall = this.falls[ray][wall]; return sum === null || (far === null && fall) ? null : sum + (far ?? 0n) * fall;
    }, 0n));
    const some = [...falls.entries()].filter(([, fall]) => fall !== null);
    return this.heights.map((row) => {
      let least = null;
      for (const [wall, fall] of some) { const one = row[wall] + fall; if (least === null || one < least) least = one; }
      return this.most - least;
    });
  }
  sum(corner, epsilon, odds, up) { // a bound on the sum of odds times e**-(epsilon distance) of some places at a corner
    if (this.epsilon === null || epsilon.compare(this.epsilon)) [this.epsilon, this.rows] = [epsilon, new Map()];
    const away = corner.filter(([, far]) => far !== 0n); const key = away.map(([ray, far]) => `${ray}:${far === null ? "" : far.toString(36)}`).join();
    if (!this.known.has(key)) this.known.set(key, this.distances(away));
    const own = `${key} ${up}`;
    if (!this.rows.has(own)) this.rows.set(own, new Array(this.places.length).fill(null));
    const [row, far, top, low] = [this.rows.get(own), this.known.get(key), epsilon.num << ROUND, epsilon.den * this.under]; let found = 0n;
    for (const [i, one] of odds) found += one * (row[i] ??= power(up ? (far[i] * top) / low : (far[i] * top + low - 1n) / low, up));
    return found;
  }
  check(signs, epsilon, plus, minus) { // go through the cells, each of which has a bound
    const { flat, corners } = this.body; const ends = [0n, 1n << (DEPTH - 2n), 1n << DEPTH, null]; const sides = [0, 1, 2].map((k) => [ends[k], ends[k + 1]]);
    for (let sector = 0; sector < corners.length; sector += 1) {
      const rays = flat ? [sector] : [(sector + 1) % corners.length, sector];
      const waiting = sides.flatMap((a) => (flat ? [[0n, 0n]] : sides).map((b) => [a, b])).reverse();
      while (waiting.length) {
        const cell = waiting.pop(); const sign = signs.next().value;
        if (["A", "B", "C"].includes(sign)) {
          const [one, other] = cell.map((side, k) => (["AC", "BC"][k].includes(sign) ? halved(side) : [side]));
          waiting.push(...one.flatMap((a) => other.map((b) => [a, b])).reverse());
        } else {
          hold(VALUES.has(sign), "a cell of outputs is left out, or its sign is none");
          const [near, far] = [0, 1].map((end) => rays.map((ray, k) => [ray, cell[k][end]]));
          const [above, below] = [this.sum(far, epsilon, plus, true), this.sum(near, epsilon, minus, false)];
          hold(above * 35n <= VALUES.get(sign) * below, `an output of sector ${sector} may take it to more than ${sign} of the bound's 35 parts`);
        } } }
  }
}
function bezout(a, b) { // s and t with s a + t b = 1, of two numbers without a common divisor
  let [[r, s, t], [next, u, v]] = [[a, 1n, 0n], [b, 0n, 1n]];
  while (next) { const times = r / next; [[r, s, t], [next, u, v]] = [[next, u, v], [r - times * next, s - times * u, t - times * v]]; }
  return [s * r, t * r];
}
function halved([start, end]) {
  const twice = end === null ? 4n * start : start + end; hold(twice % 2n === 0n, "cells are halved too often");
  return [[start, twice / 2n], [twice / 2n, end]];
}
// ---- how people move, events, and what is believed (§2, §3) -------------------------------------------------------
// What is believed of a context is one whole number: a lane for each bound, of each progress of the event, beside each other.
class Chances { // the probabilities of moves and of first states
  constructor(value, of) {
    const [, moves, start, about] = fields(value, "is moves start about"); Object.assign(this, { of, size: of.size }); const chain = of.moves[0].length;
    this.state = [...Array(of.size).keys(), ...of.twins.map(([, state]) => bits(state)[0])];
    const rows = listed(moves, "moves", of.moves.length).map((one, m) => listed(one, "moves", chain).map((row, s) => {
      const to = bits(of.moves[m][s]); return [to, doubles(row, to.length, "moves")];
    }));
    const starts = listed(start, "start", of.moves.length).map((one, m) => {
      const where = bits(of.starts[m]); const found = new Map(doubles(one, where.length, "start").map((p, k) => [where[k], p]));
      return Array.from({ length: chain }, (_, s) => found.get(s) ?? [0n, 0n]);
    });
    const none = rows.flat().some(([, row]) => row.some(([m]) => !m)) || starts.some((one, m) => one.filter(([p]) => p).length < bits(of.starts[m]).length);
    hold(!none, "a possible move has the probability 0");
    this.shifts = rows.map((one) => largest(one.flatMap(([, row]) => row.map(([, k]) => k)), 0n)); this.starts = starts;
    this.width = BITS + 96n + largest(this.shifts); this.lane = (1n << this.width) - 1n; this.known = chain === of.size;
    [this.masks, this.powers] = [new Map(), []];
    this.rows = rows.map((one, m) => one.map(([to, row]) => [to, row.map(([p, k]) => p << (this.shifts[m] - k))]));
    this.columns = this.rows.map((one) => {
      const found = one.map(() => [[], []]); one.forEach(([to, by], s) => to.forEach((j, k) => { found[j][0].push(s); found[j][1].push(by[k]); }));
      return found;
    });
    hold(!this.known || this.hashes(rows, listed(about, "about")).includes(of.hash), "the probabilities are not those of the model's hash");
  }
  hashes(rows, about) { // what the hash of a model without other contexts may be (§2); whether its step is a double is not told
    const text = (one) => (one === null ? "none()0:" : `U()${Buffer.byteLength(textOf(one, "about"))}:${one}`); const several = about.length > 1;
    const numbers = (kind, shape, some) => {
      const found = Buffer.alloc(8 * some.length);
      some.forEach((one, k) => (kind === "i" ? found.writeBigInt64LE(BigInt(one), 8 * k) : found.writeDoubleLE(one, 8 * k)));
      return Buffer.concat([Buffer.from(`${kind}${shape}${found.length}:`), found]);
    };
    const double = ([m, k]) => Number(m) * 2 ** -Number(k); // exact, as m / 2**k is a double in lowest terms
    const found = [text(several ? "dphmm-markov-model-2" : null).repeat(several), numbers("i", "()", [this.size])];
    for (const one of rows) {
      const ends = [0]; one.forEach(([to]) => ends.push(ends.at(-1) + to.length)); const entries = one.flatMap(([, row]) => row.map(double));
      const shape = `(${entries.length},)`;
      found.push(numbers("i", `(${ends.length},)`, ends), numbers("i", shape, one.flatMap(([to]) => to)), numbers("f", shape, entries));
    }
    found.push(numbers("f", several ? `(${rows.length}, ${this.size})` : `(${this.size},)`, this.starts.flat().map(double)), text(about[0]));
    const { step } = this.of; const steps = step === null ? [text(null)] : [numbers("f", "()", [step.toNumber()]), numbers("i", "()", [step.floor()])];
    const ended = (last) => [...found, last, several ? text(about[1]) + text(null) : ""].reduce((hash, one) => hash.update(one), createHash("sha256"));
    return steps.map((last) => ended(last).digest("hex").slice(0, 16));
  }
  /** Belief moved to a slot from the one before; or `back`, the mean of what is believed after a slot over the moves to it. */
  moved(values, slot, back, up) {
    const number = this.of.classOf(slot); const shift = this.shifts[number]; const [over, mask, full] = this.around(shift, up);
    return (back ? this.rows : this.columns)[number].map(([from, by]) => {
      let sum = 0n;
      for (let k = 0; k < from.length; k += 1) { const value = values[from[k]]; if (value) sum += value * by[k]; }
      sum = ((sum + over) >> shift) & mask; hold(!(sum & full), "probabilities of moves sum to more than one"); return sum;
    });
  }
  bridged(values, slot, to, up) { // the same over many slots, by powers of the matrix where going step by step takes longer; back where `to` is before
    for (const way = to < slot ? -1 : 1; slot !== to;) {
      const level = this.level(Math.abs(to - slot));
      values = level ? this.leapt(values, this.powers[level], way < 0, up) : this.moved(values, way < 0 ? slot : slot + 1, way < 0, up);
      slot += way * 2 ** level;
    }
    return values;
  }
  level(count) { // by which power of two to go on through a gap
    const [n, moves] = [this.state.length, this.rows[0].reduce((sum, [to]) => sum + to.length, 0)]; let level = 0;
    const pays = (next) => !this.of.hours && count * moves > 2 * n ** 3 && Math.floor(count / 2 ** next) > n / 16;
    while (2 ** (level + 1) <= count && (level + 1 < this.powers.length || pays(level + 1))) level += 1;
    if (level && !this.powers.length) {
      const dense = ([to, by]) => { const row = new Array(n).fill(0n); to.forEach((j, k) => { row[j] = by[k] << WIDE; }); return row; };
      this.keep(this.rows[0].map(dense), this.shifts[0], 1n);
    }
    while (level && this.powers.length <= level) this.square(this.powers.at(-1));
    return level;
  }
  keep(given, shift, off) { // a power, over 2**WIDE, and how far from it an entry may be; none that is possible becomes 0
    const rows = given.map((row) => row.map((one) => one >> shift || BigInt(one > 0n)));
    this.powers.push({ rows, columns: rows.map((_, j) => rows.map((row) => row[j])), off });
  }
  square({ rows, columns, off }) { // row by row, with all columns in one number: so many hexadecimal digits for each
    const most = largest(rows.map(sumOf)) + BigInt(rows.length) * off; hold(most >> WIDE < 2n, "probabilities of moves sum to more than one");
    const digits = (one, count) => one.toString(16).padStart(count * DIGITS, "0");
    const packed = rows.map((row) => BigInt(`0x${row.map((one) => digits(one, 1)).join("")}`));
    const found = rows.map((row) => {
      const text = digits(row.reduce((sum, one, k) => (one ? sum + one * packed[k] : sum), 0n), rows.length);
      return rows.map((_, j) => BigInt(`0x${text.slice(j * DIGITS, (j + 1) * DIGITS)}`));
    });
    this.keep(found, WIDE, ((off * (most + largest(columns.map(sumOf)))) >> WIDE) + 2n);
  }
  leapt(values, { rows, columns, off }, back, up) {
    const lanes = up.map((_, k) => values.map((value) => (value >> (BigInt(k) * this.width)) & this.lane)); const far = lanes.map((lane) => off * sumOf(lane));
    return (back ? rows : columns).map((by) => this.pack(lanes.map((lane, k) => {
      let sum = 0n;
      for (let s = 0; s < by.length; s += 1) if (lane[s]) sum += lane[s] * by[s];
      const one = up[k] ? sum && ceil(sum + far[k], WIDE) : (sum > far[k] ? sum - far[k] : 0n) >> WIDE;
      hold(!(one >> (BITS + 64n)), "probabilities of moves sum to more than one"); return one;
    })));
  }
  around(shift, up) { // for lanes that are rounded up or down: what is added before a shift, what is kept after it, and bits that stay 0
    const key = `${shift} ${up}`;
    if (!this.masks.has(key)) {
      const low = ((1n << BITS + 96n) - 1n); const all = (one) => up.reduce((found, way, k) => found | (one(way) << (BigInt(k) * this.width)), 0n);
      this.masks.set(key, [all((way) => (way ? (1n << shift) - 1n : 0n)), all(() => low), all(() => low ^ ((1n << BITS + 64n) - 1n))]);
    }
    return this.masks.get(key);
  }
  pack(lanes) { return lanes.reduce((found, one, k) => found | (one << (BigInt(k) * this.width)), 0n); }
  lanes(value, count) { return Array.from({ length: count }, (_, k) => (value >> (BigInt(k) * this.width)) & this.lane); }
}
class Event { // an automaton: for each slot from `at` on, of each progress and context which progress follows; and which of the last ones mean yes
  constructor(value, chances) {
    const [, layers, times, yes] = fields(value, "is layers times yes"); const chain = chances.state.length; [this.layers, this.last] = [[], 1];
    const made = listed(layers, "layers").map((layer) => this.layer(listed(layer, "a layer"), chain)); const used = new Set();
    for (const [number, count] of pairs(times, "times")) {
      const one = made[integer(number, "times", 0, made.length - 1)]; integer(count, "times", 1, LONGEST - this.layers.length); used.add(number);
      hold(one.targets.length === this.last && (count === 1 || one.after === this.last), "a layer does not follow the one before");
      for (let k = 0; k < count; k += 1) this.layers.push(one);
      this.last = one.after;
    }
    const inside = new Set(members(yes, this.last, "yes")); this.yes = Array.from({ length: this.last }, (_, p) => inside.has(p));
    hold(this.layers.length && used.size === made.length, "an event has no time, or a layer too many");
  }
  layer(sources, chain) {
    hold(sources.length <= 512, "an event has too many progresses"); let after = 0;
    const targets = sources.map((source) => {
      const found = new Array(chain).fill(null); let least = 0;
      for (const arc of listed(source, "a progress")) {
        const [target, where] = listed(arc, "an arc", 2); integer(target, "a progress", least, 511); least = target + 1; after = Math.max(after, least);
        for (const s of members(where, chain, "an arc")) { hold(found[s] === null, "an event goes on in two ways at once"); found[s] = target; }
      }
      hold(!found.includes(null), "an event does not say how it goes on"); return found;
    });
    const changing = Array.from({ length: chain }, (_, s) => s).filter((s) => targets.some((row, p) => row[s] !== p) || after !== targets.length);
    return { targets, after, changing };
  }
  joined(values, { targets, changing }, width) { // what is believed after a slot, from that before it
    const mask = (1n << width) - 1n; const found = [...values];
    for (const s of changing) {
      if (values[s]) found[s] = targets.reduce((sum, row, p) => sum + (((values[s] >> (BigInt(p) * width)) & mask) << (BigInt(row[s]) * width)), 0n);
    }
    return found;
  }
  parted(values, { targets, changing }, width) { // the other way round: what is to come before a slot, from that after it
    const mask = (1n << width) - 1n; const found = [...values];
    for (const s of changing) found[s] = targets.reduce((sum, row, p) => sum | (((values[s] >> (BigInt(row[s]) * width)) & mask) << (BigInt(p) * width)), 0n);
    return found;
  }
  toCome(chances, at, slots) { // for each slot: bounds (yes up, no down, yes down, no up) of what is still to come, in lanes by progress
    const end = at + this.layers.length - 1; const wanted = new Set(slots.map((slot) => Math.min(slot, end))); const least = Math.min(...wanted);
    const found = new Map();
    const [ways, four] = [[true, false, false, true], 4n * chances.width];
    const last = this.yes.flatMap((happens) => [happens, !happens, happens, !happens].map((one) => (one ? ONE : 0n)));
    let values = new Array(chances.state.length).fill(chances.pack(last));
    const ends = new Set(wanted); for (let slot = Math.max(at - 1, least); slot <= end; slot += 1) ends.add(slot);
    [...ends].sort((a, b) => b - a).forEach((slot, k, all) => {
      if (wanted.has(slot)) found.set(slot, values);
      const layer = slot >= at ? this.layers[slot - at] : null;
      if (layer) values = this.parted(values, layer, four);
      if (slot > least) values = chances.bridged(values, slot, all[k + 1], Array.from({ length: layer ? layer.targets.length : 1 }, () => ways).flat());
    });
    return found;
  }
  isSaid(said, at, where) { // whether it happens on exactly the paths on which its text says so: both are followed over all paths at once
    let reached = new Map([["0 0", [0, 0n]]]); const known = new Map();
    this.layers.forEach((layer, k) => {
      const open = said.atoms.map(({ first, last }) => first <= at + k && at + k <= last); const key = open.join();
      if (!known.has(layer)) known.set(layer, new Map());
      if (!known.get(layer).has(key)) {
        const seen = where.map((s) => said.atoms.reduce((sum, { states }, i) => (open[i] && states.has(s) ? sum | (1n << BigInt(i)) : sum), 0n));
        known.get(layer).set(key, layer.targets.map((row) => [...new Map(row.map((target, s) => [`${target} ${seen[s]}`, [target, seen[s]]])).values()]));
      }
      const ways = known.get(layer).get(key); const next = new Map();
      for (const [p, before] of reached.values()) for (const [target, now] of ways[p]) next.set(`${target} ${before | now}`, [target, before | now]);
      reached = next;
    });
    return [...reached.values()].every(([p, seen]) => this.yes[p] === said.holds(seen));
  }
}
class Prior { // another first distribution
  constructor(value, chances) { this.start = doubles(fields(value, "is start")[1], chances.state.length, "start"); }
}
class Belief { // bounds on the masses of a chain and an event's progress, from a first distribution on, release by release
  constructor(chances, event, at, first, prior) {
    [this.chances, this.event, this.at, this.slot, this.free, this.count] = [chances, event, at, Math.min(at, first), prior !== null, 1];
    const start = (prior ? prior.start : chances.starts[chances.of.classOf(first)]).map(([m, k]) => [(m << BITS) >> k, ceil(m << BITS, k)]);
    this.values = start.map((one) => chances.pack(one)); const { hours, step } = chances.of;
    if (at < first) { // begun at rest before the first release: at the same time of the week as later
      hold(prior === null, "an event begins before the first release, of which a prior says nothing");
      const week = hours ? whole(WEEK).over(step) : whole(1);
      hold(first - at <= LONGEST && week.den === 1n, "an event begins too long before the first release");
      const until = first + Number((((BigInt(at - first) % week.num) + week.num) % week.num));
      this.ahead(first, until);
    }
    this.join(); this.move(first);
    if (at >= first) return;
    this.values.forEach((value, s) => start[s].forEach((one, side) => {
      const off = sumOf(chances.lanes(value, 2 * this.count).filter((_, k) => k % 2 === side)) - one;
      hold((off < 0n ? -off : off) <= one / 10n ** 8n + ONE / 10n ** 12n, "the model does not begin at rest, and an event before the first release");
    }));
  }
  ahead(slot, to) { this.values = this.chances.bridged(this.values, slot, to, Array.from({ length: 2 * this.count }, (_, k) => k % 2 === 1)); }
  join() {
    if (this.slot < this.at || this.slot >= this.at + this.event.layers.length) return;
    const layer = this.event.layers[this.slot - this.at]; this.values = this.event.joined(this.values, layer, 2n * this.chances.width);
    this.count = layer.after;
  }
  move(slot) { // at once where the event has not begun, or is over
    hold(slot - this.slot <= LONGEST, "a gap is too long to be followed");
    while (this.slot < slot) {
      const [before, over] = [this.slot, this.slot + 1 >= this.at + this.event.layers.length];
      this.slot = over ? slot : Math.min(slot, Math.max(before + 1, this.at - 1)); this.ahead(before, this.slot); this.join();
    }
  }
  possible() { // of each state whether anyone can be there
    const found = new Array(this.chances.size).fill(false); this.values.forEach((value, s) => { if (value) found[this.chances.state[s]] = true; });
    return found;
  }
  odds(over, toCome, turned) { // bounds from above on (1 - q) Pr(s, E) - q Pr(s, not E) for each state, up to one factor; turned round for not E
    const [found, others] = [new Array(this.chances.size).fill(0n), over.den - over.num]; const [yes, no] = turned ? [3, 2] : [0, 1];
    this.values.forEach((value, s) => {
      if (!value) return;
      const [masses, later] = [this.chances.lanes(value, 2 * this.count), this.chances.lanes(toCome[s], 4 * this.count)];
      for (let p = 0; p < this.count; p += 1) {
        found[this.chances.state[s]] += others * masses[2 * p + 1] * later[4 * p + yes] - over.num * masses[2 * p] * later[4 * p + no];
      }
    });
    return found.map((one) => ceil(one, BITS));
  }
  update(likelihood) { // by a release's law in each state, of which both bounds are given
    const lanes = this.values.map((value, s) => (value ? this.chances.lanes(value, 2 * this.count) : []).map((mass, k) => {
      const one = mass * likelihood[this.chances.state[s]][k % 2]; return k % 2 ? ceil(one, BITS) : one >> BITS;
    }));
    const most = largest(lanes.flat(), 0n);
    hold(most || this.free, "no possible path could have given this release");
    const shift = BITS - BigInt(bitLength(most)); this.values = lanes.map((row) => this.chances.pack(shift > 0n ? row.map((one) => one << shift) : row));
  }
}
class Noise { // bodies or tables, each for some states
  constructor(value, places) {
    [this.places, this.at, this.fans] = [places, places.at, new Map()];
    this.parts = listed(fields(value, "is parts", "added")[1], "parts").map((part) => {
      const [states, rows, own, body] = fields(part, "", "states table places body");
      hold((rows === null) === (own === null) && (rows === null) !== (body === null), "a part has no body or table");
      const law = rows ? this.table(rows, own) : new Ring(listed(body, "body").map((v) => point(v, "a corner")));
      const inside = states && new Set(members(states, this.at.length, "states"));
      hold(rows ? places.unit === null : places.unit || law.isPoint, "a table on a lattice, or a body where tables release"); return { law, inside };
    });
  }
  table(rows, own) { // by place the weights of each of some places
    const names = listed(own, "places").map((s) => String(this.at[integer(s, "places", 0, this.at.length - 1)]));
    const weights = listed(rows, "table", names.length).map((row) => listed(row, "table", names.length).map((one) => fraction(one, "a weight", ZERO)));
    hold(weights.every((row) => row.every((one) => one.den === 1n) && sumOf(row.map((one) => one.num)) === TOTAL), "a row is no law over 2**62");
    return { names, rows: new Map(names.map((name, k) => [name, weights[k].map((one) => one.num)])) };
  }
  parted(possible) { // the states of each part: all that are possible are in one
    const found = this.parts.map(({ inside }) => (inside ? possible.filter((s) => inside.has(s)) : possible)); const all = found.flat();
    hold(all.length === possible.length && new Set(all).size === all.length, "a possible state has no noise, or two"); return found;
  }
  likelihood(given, epsilon, possible) { // bounds on the law of a release in each state, up to one factor
    const found = this.at.map(() => [0n, 0n]); const z = this.places.unit ? point(given, "z") : this.at[integer(given, "z", 0, this.at.length - 1)];
    this.parted(possible).forEach((own, k) => {
      const { law } = this.parts[k];
      if (!(law instanceof Ring)) {
        const column = law.names.indexOf(String(z));
        for (const s of own) { const weight = column < 0 ? 0n : (law.rows.get(String(this.at[s]))[column] * ONE) >> 62n; found[s] = [weight, weight]; }
        return;
      }
      const off = (s) => [z[0] - this.at[s][0], z[1] - this.at[s][1]]; const same = (s) => String(z) === String(this.at[s]); const laws = new Map();
      const some = own.filter((s) => (law.isPoint ? same(s) : law.spans(off(s)))).map((s) => [s, law.isPoint ? ZERO : law.norm(off(s))]);
      const alone = this.parts.length === 1; const [low, high] = alone ? [ONE, ONE] : [false, true].map((up) => law.total(epsilon, up));
      const least = alone && some.length ? some.reduce((a, [, norm]) => (norm.compare(a) < 0 ? norm : a), some[0][1]) : ZERO;
      for (const [s, norm] of some) {
        const key = String(norm); const bound = (up, total) => (raised(epsilon, norm.minus(least), up) * ONE) / total + BigInt(up && total !== ONE);
        if (!laws.has(key)) laws.set(key, [bound(false, high), bound(true, low)]);
        found[s] = laws.get(key);
      }
    });
    return found;
  }
  check(epsilon, possible, odds, witness) { // no output takes the sum of odds times law above 0
    const outputs = new Map(); const add = (place, one) => outputs.set(place, (outputs.get(place) ?? 0n) + one); listed(witness, "caps", this.parts.length);
    this.parted(possible).forEach((own, k) => {
      const { law } = this.parts[k]; const signs = textOf(witness[k], "caps")[Symbol.iterator]();
      if (!(law instanceof Ring)) own.forEach((s) => law.rows.get(String(this.at[s])).forEach((weight, column) => add(law.names[column], weight * odds[s])));
      else {
        const ofPlace = new Map(); own.forEach((s) => { const place = String(this.at[s]); ofPlace.set(place, (ofPlace.get(place) ?? 0n) + odds[s]); });
        if (law.isPoint) ofPlace.forEach((one, place) => add(place, one * TOTAL));
        else for (const fan of this.fansOf(law, own)) {
          const some = [...fan.places.entries()].map(([i, place]) => [i, ofPlace.get(String(place))]); const plus = some.filter(([, one]) => one > 0n);
          if (fan.reach) fan.check(signs, epsilon, plus, some.filter(([, one]) => one < 0n).map(([i, one]) => [i, -one]));
          else hold(!plus.length, "an output passes it");
        }
      }
      hold(signs.next().done, "there are more cells than that");
    });
    hold([...outputs.values()].every((one) => one <= 0n), "an output passes it");
  }
  fansOf(body, states) { // of a segment one for each line, from the right of its direction to the left
    if (!this.fans.has(body)) this.fans.set(body, new Map());
    const [known, key] = [this.fans.get(body), states.join()];
    if (!known.has(key)) {
      if (known.size > 3) known.clear(); // they are large, and few are needed again
      const lines = new Map();
      for (const place of new Map(states.map((s) => [String(this.at[s]), this.at[s]])).values()) {
        const line = body.flat ? cross(body.upper[0], place) : 0n; lines.set(line, [...(lines.get(line) ?? []), place]);
      }
      known.set(key, [...lines.keys()].sort((a, b) => (a < b ? -1 : 1)).map((line) => new Fan(body, lines.get(line))));
    }
    return known.get(key);
  }
}
// ---- what the texts of events say (§5) ----------------------------------------------------------------------------
const WORDS = /^(?:state:([0-9,]+) (?:(?:at|on) (\S+)|between (\S+) and (\S+))( from the first release)?|(state:[0-9,]+(?: then state:[0-9,]+)+) from ([0-9]+))$/;
class Said { // presence in numbered states, in windows of steps or of days in UTC, joined by |, &, ! and brackets, or one place after another
  constructor(text, first, step) {
    this.tokens = (text.match(/[()|&!]|[^()|&!]+/g) ?? []).map((one) => one.trim()).filter(Boolean); [this.atoms, this.first, this.step] = [[], first, step];
    this.holds = this.either(); hold(!this.tokens.length, "the text is none of these");
  }
  take(sign) { return this.tokens[0] === sign && Boolean(this.tokens.shift()); }
  either() { const parts = [this.both()]; while (this.take("|")) parts.push(this.both()); return (seen) => parts.some((one) => one(seen)); }
  both() { const parts = [this.one()]; while (this.take("&")) parts.push(this.one()); return (seen) => parts.every((one) => one(seen)); }
  one() {
    if (this.take("!")) { const inner = this.one(); return (seen) => !inner(seen); }
    if (this.take("(")) { const inner = this.either(); hold(this.take(")"), "the text has a bracket too many"); return inner; }
    const found = WORDS.exec(this.tokens.shift() ?? ""); hold(found, "the text is none of these");
    const [, states, one, start, end, clipped, row, begin] = found;
    const atom = (where, from, last) => {
      const some = where.split(","); hold(some.every(Boolean), "the text is none of these"); return { states: new Set(some.map(Number)), first: from, last };
    };
    const slot = (k) => this.first + Number(begin) + k;
    const made = row ? row.replaceAll("state:", "").split(" then ").map((where, k) => atom(where, slot(k), slot(k)))
      : [atom(states, ...this.window(one ?? start, one ?? end, clipped))];
    const mask = ((1n << BigInt(made.length)) - 1n) << BigInt(this.atoms.length); this.atoms.push(...made); return (seen) => (seen & mask) === mask;
  }
  window(start, end, clipped) { // the first and the last slot
    if (/^[0-9]+$/.test(start) && /^[0-9]+$/.test(end)) return [this.first + Number(start), this.first + Number(end)];
    const [begin, until] = [start, end].map((one) => {
      const found = /^\d{4}-\d\d-\d\d$/.test(one) ? new Date(`${one}T00:00Z`) : null;
      hold(this.step && found && !Number.isNaN(Number(found)) && found.toISOString().startsWith(one), "the text is none of these");
      return BigInt(Number(found) / 1000);
    });
    const slot = (seconds) => Number(whole(seconds).over(this.step).ceil()); const first = slot(begin);
    return [clipped ? Math.max(first, this.first) : first, slot(until + 86_400n) - 1];
  }
}
function saidOf(...given) {
  try { return new Said(...given); } catch (problem) { if (problem instanceof Refused) return null; throw problem; }
}
// ---- one person's releases (§1) -----------------------------------------------------------------------------------
const CAP = /^(\S+) <= (.*) <= (\S+)$/s;
const maps = (value, name) => { hold(value instanceof Map, `${name} is no object`); return value; };
function person([begunAt, line], steps, parts, report) {
  report.line = begunAt; const name = textOf(line.get("begin"), "begin"); report.releases += steps.length; report.people.add(name);
  const queries = listed(line.get("queries"), "queries").map((one) => maps(one, "a query")); hold(queries.length, "there is no query");
  const settings = queries.map((one) => parse(textOf(one.get("settings"), "settings"), Fraction.of)).map((one) => maps(one, "settings"));
  const told = (one) => canonical([one.get("caps") ?? null, one.get("priors") ?? null]);
  const caps = listed(settings[0].get("caps") ?? [], "caps").map((one) => CAP.exec(textOf(one, "a cap")) ?? hold(false, "a cap is none"));
  if (!caps.length) { report.free.add(name); return; }
  hold(!line.has("goes_on") && settings.every((one) => told(one) === told(settings[0])), "queries differ in their caps, or this goes on from other ones");
  hold(queries.every((one) => one.get("rank") === 0), "caps of several readers are not checked");
  hold(settings.every((one) => (one.get("delta") ?? ZERO).num === 0n), "with delta, states are possible that have no noise; caps are not checked");
  if (report.capped.has(name)) report.not.add("that caps hold for what a person's releases before a new beginning told together with those after it");
  report.capped.add(name);
  if (!steps.length) return;
  const known = parts.values.get(line.get("model")); hold(known instanceof Map && known.get("is") === "model", "no such model was given before");
  [[report.line]] = steps; const first = steps[0][1].get("slot"); const of = parts.get(line.get("model"), Model);
  const [key, claims, others] = fields(steps[0][1].get("events"), "chances caps priors"); const chances = parts.get(key, Chances, of);
  const priors = listed(others, "priors").map((one) => parts.get(one, Prior, chances));
  hold(Boolean(priors.length) === Boolean(settings[0].get("priors")), "priors are not those of the settings");
  const slots = steps.map(([, one]) => one.get("slot")); hold(slots.every((slot, k) => !k || slot >= slots[k - 1]), "time goes back"); const watched = [];
  listed(claims, "events", caps.length);
  caps.forEach(([, low, text, high], k) => {
    const [least, most, [digest, at]] = [Fraction.of(low), Fraction.of(high), fields(claims[k], "event at")];
    hold(least.num >= 0n && least.compare(most) < 0 && most.num < most.den, "a cap is none");
    const said = saidOf(text, first, of.step); const short = [...text].slice(0, 60).join("");
    if (digest === null) {
      hold(at === 0, "at is of no event");
      const over = said && said.atoms.every(({ last }) => last < first);
      if (!over) report.not.add(`that the event '${short}', which is passed over, was over before the first release`);
      return;
    }
    const event = parts.get(digest, Event, chances); hold(Math.abs(integer(at, "at") - first) <= LONGEST, "an event is too far away");
    if (said) {
      const within = said.atoms.every((one) => at <= one.first && one.last < at + event.layers.length);
      hold(within, "the event has another window than its text");
      const inside = chances.state.map((s, c) => (c < chances.size ? s : -1));
      const ways = [["people outside, who are in none of its states", inside], ["pairs of states", chances.state]];
      const kinds = ways.filter(([, where]) => event.isSaid(said, at, where)).map(([kind]) => kind); hold(kinds.length, "the event is another than its text");
      if (!chances.known) report.not.add(`that what the model tells apart beyond its states is ${kinds.join(" or ")}; texts of events are read so`);
    } else report.not.add(`that the automaton of '${short}' is what this text says`);
    const toCome = event.toCome(chances, at, slots);
    for (const prior of [null, ...priors]) watched.push({ event, belief: new Belief(chances, event, at, first, prior), toCome, least, most, text: short });
  });
  if (!chances.known) report.not.add("that the probabilities are those of the model's hash, which has states of more than one kind");
  if (priors.length) report.not.add("that the other priors are those of the settings' table");
  steps.forEach(([number, value], count) => {
    report.line = number; const query = queries.find((one) => one.get("query") === value.get("query")); hold(query, "the query is none of this person's");
    hold(value.get("step") === count, `the release has the number ${value.get("step")}, and ${count} is missing`);
    hold(!count || !value.has("events"), "events are told again");
    for (const { belief } of watched) belief.move(value.get("slot"));
    release(value, watched, query, chances, parts, report);
  });
}
function release(value, watched, query, chances, parts, report) {
  if (value.has("withheld")) {
    const silent = value.get("epsilon") === "0" && !["noise", "z", "caps"].some((one) => value.has(one));
    hold(silent, "a release that was withheld says more than why"); report.withheld += 1; return;
  }
  const epsilon = fraction(value.get("epsilon"), "epsilon"); hold(epsilon.num > 0n, "epsilon is none");
  const noise = parts.get(value.get("noise"), Noise, parts.get(query.get("places"), Places));
  hold(noise.at.length === chances.size, "places and model differ in size");
  const witness = listed(value.get("caps"), "caps", watched.reduce((sum, { least }) => sum + 1 + (least.num > 0n), 0)).values();
  const there = watched.length ? watched[0].belief.possible() : []; const possible = [...there.keys()].filter((s) => there[s]);
  const likelihood = watched.length ? noise.likelihood(value.get("z"), epsilon, possible) : [];
  for (const { event, belief, toCome, least, most, text } of watched) {
    const now = toCome.get(Math.min(value.get("slot"), belief.at + event.layers.length - 1));
    for (const [over, turned] of [[most, false], ...(least.num ? [[ONE_WHOLE.minus(least), true]] : [])]) {
      try {
        const [odds, cells] = [belief.odds(over, now, turned), witness.next().value];
        hold(belief.possible().every((one, s) => !one || there[s]), "another prior holds possible what the model does not");
        if (cells === null) hold(odds.every((one) => one <= 0n), "no cells are given");
        else noise.check(epsilon, possible, odds, cells);
      } catch (problem) {
        const which = turned ? `floor ${least.toNumber()}` : `cap ${most.toNumber()}`;
        throw problem instanceof Refused ? new Refused(`the ${which} on '${text}' is not shown to be kept: ${problem.message}`) : problem;
      }
      report.checked += 1;
    } }
  for (const { belief } of watched) belief.update(likelihood);
  report.drawn += 1;
}
const ONE_WHOLE = whole(1);
// ---- files and words ----------------------------------------------------------------------------------------------
/** Check the lines of a certificate, texts or bytes; what is refused says in which line. `reading` is told the number of each that is looked at. */
export function verify(lines, _rows = null, reading = () => {}) {
  let [line, begun, steps, ended, number] = [0, null, [], false, 0]; const parts = new Parts();
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const report = { releases: 0, drawn: 0, withheld: 0, checked: 0, people: new Set(), capped: new Set(), free: new Set(), not: new Set() };
  Object.defineProperty(report, "line", { get: () => line, set: (given) => { line = given; reading(given); } });
  try {
    for (const text of lines) {
      report.line = number += 1; hold(text.length <= LONGEST_LINE && !ended, "the line is too long, or follows the end");
      const value = maps(parse(typeof text === "string" ? text : decoder.decode(text)), "it");
      if (number === 1) hold(canonical(value) === '{"certificate":1}', "it begins no certificate of releases of a known format");
      else if (value.has("part")) parts.add(value);
      else if (value.has("step")) { integer(value.get("slot"), "slot"); hold(begun, "a release is of nobody"); steps.push([number, value]); } else {
        if (begun) person(begun, steps, parts, report);
        [begun, steps, report.line, ended] = [[number, value], [], number, !value.has("begin")];
        hold(!ended || fields(value, "end")[0] === report.releases, `it ends with another number of releases than ${report.releases}`);
      }
    }
    hold(ended, "the end is missing");
  } catch (problem) {
    if (problem instanceof Refused) throw new Refused(`line ${line}: ${problem.message}`);
    const malformed = [TypeError, RangeError, SyntaxError].some((kind) => problem instanceof kind);
    if (malformed) throw new Refused(`line ${line}: it is malformed (${problem.message})`);
    throw problem;
  }
  return report;
}
function* linesOf(path) { // the lines of a file as bytes, of which no more than one is kept; of one that is too long its beginning
  const [file, chunk] = [openSync(path, "r"), Buffer.alloc(1 << 20)]; let [waiting, size] = [[], 0];
  const taken = () => { const found = Buffer.concat(waiting); [waiting, size] = [[], 0]; return found; };
  try {
    for (let count = readSync(file, chunk); count; count = readSync(file, chunk)) {
      let start = 0;
      for (let end = chunk.indexOf(10); end >= 0 && end < count; end = chunk.indexOf(10, start)) {
        waiting.push(Buffer.from(chunk.subarray(start, end))); start = end + 1; yield taken();
      }
      waiting.push(Buffer.from(chunk.subarray(start, count))); size += count - start;
      if (size > LONGEST_LINE) break;
    }
    if (size) yield taken();
  } finally { closeSync(file); }
}
function say(report) {
  const told = (number) => number.toLocaleString("en-US"); const { drawn, checked, withheld, capped, people, free } = report;
  const yes = [checked && `at ${told(drawn)} releases about ${capped.size} of ${people.size} people no output of the noise, whatever it would have drawn, takes the `
    + `probability of a capped event above its cap, or below its floor (${told(checked)} checks)`,
  withheld && `at ${told(withheld)} releases nothing was drawn, so that none tells of an event but by public things`].filter(Boolean);
  const no = ["all else that the certificate says, which dphmm-verify checks", "that people move by the model, or begin by one of the priors",
    "that budgets were made smaller, or releases withheld, by public things alone", ...[...report.not].sort()];
  if (free.size) no.push(`anything of ${free.size} people, whose settings have no caps`);
  return [["VERIFIED", ...yes], ["NOT VERIFIED", ...no]].map((some) => some.join("\n  - ")).join("\n");
}
function main([path, ...more]) { // in a thread of its own, which ends when it has taken too much time or memory
  const seconds = more.length ? Number(more[1]) : 3600;
  if (!path || path.startsWith("-") || (more.length && (more.length > 2 || more[0] !== "--seconds" || !/^[1-9][0-9]{0,8}$/.test(more[1])))) {
    console.log("Usage: dphmm-verify-caps.mjs CERTIFICATE [--seconds 3600]"); process.exitCode = 2; return;
  }
  const line = new Int32Array(new SharedArrayBuffer(4)); let found = null;
  const refuse = (reason) => { found ??= { refused: `line ${line[0]}: ${reason}` }; };
  const resourceLimits = { maxOldGenerationSizeMb: MEBIBYTES, maxYoungGenerationSizeMb: 64 };
  const worker = new Worker(new URL(import.meta.url), { workerData: { path, line }, resourceLimits });
  const taken = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1e6; };
  const clock = setInterval(() => {
    if (taken() > seconds) { refuse(`it takes more than ${seconds} s of processor time; raise --seconds`); worker.terminate(); }
  }, 100);
  worker.on("message", (message) => { found ??= message; }).on("error", (problem) => {
    if (problem.code === "ERR_WORKER_OUT_OF_MEMORY") refuse(`it takes more than ${MEBIBYTES} MiB`); else found ??= { unread: String(problem.message) };
  }).on("exit", () => {
    clearInterval(clock); process.exitCode = found?.said ? 0 : found?.refused ? 1 : 2;
    if (found?.said) console.log(found.said); else if (found?.refused) console.log(`REFUSED: ${path}: ${found.refused}`);
    else console.error(`cannot be read: ${path}: ${found?.unread}`);
  });
}
if (!isMainThread && workerData?.path) {
  try { parentPort.postMessage({ said: say(verify(linesOf(workerData.path), null, (number) => { workerData.line[0] = number; })) }); } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    parentPort.postMessage({ refused: problem.message });
  }
} else if (process.argv[1] && existsSync(process.argv[1]) && realpathSync(process.argv[1]) === realpathSync(fileURLToPath(import.meta.url))) main(process.argv.slice(2));
