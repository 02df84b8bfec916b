#!/usr/bin/env node
// Checks a certificate of temporal leakage, of budgets of landmarks, or of repaired counts, by whole numbers alone: a second verifier beside
// scripts/dphmm-verify-more, out of the same specification (docs/reference/certificate_streams.md; '§' is a section there). It needs Node's
// standard library and its neighbour dphmm-verify.mjs, whose reading of lines and values it shares.
// Usage: dphmm-verify-more.mjs CERTIFICATE [RELEASED.csv [NOISY.csv]]
// Exit codes: 0 all that is checked holds, 1 something is refused, 2 a file does not read.
import { existsSync, readFileSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import {
  Fraction, LONGEST_LINE, Parts, Refused, ZERO, bits, fields, fraction, hold, integer, linesOf, listed, parse, ranges, records, textOf,
} from "./dphmm-verify.mjs";
export { Refused };
const [ONE, PRECISION] = [new Fraction(1n), 400n];
const whole = (number) => new Fraction(BigInt(number));
const max = (a, b) => (a.compare(b) >= 0 ? a : b);
const min = (a, b) => (a.compare(b) <= 0 ? a : b);
const total = (some) => some.reduce((a, b) => a.plus(b), ZERO);
const lengthOf = (number) => (number < 0n ? -number : number).toString(2).length;
// ---- numbers (§1) -------------------------------------------------------------------------------------------------
function cut(value, up) { // a fraction with 320 binary digits, on the stated side
  const [a, b] = [lengthOf(value.num), lengthOf(value.den)];
  if (a < 320 && b < 320) return value;
  const shift = BigInt(a - b - 320);
  const scale = shift >= 0n ? new Fraction(1n << shift) : new Fraction(1n, 1n << -shift); const scaled = value.over(scale);
  return new Fraction(up ? scaled.ceil() : scaled.floor()).times(scale);
}
const known = new Map();
function power(x, up) { // a bound on e**x, on the stated side: halved until small, the series in fixed point, squared again
  const key = `${x} ${up}`;
  if (known.has(key)) return known.get(key);
  if (x.compare(ZERO) < 0) return ONE.over(power(ZERO.minus(x), !up));
  hold(x.compare(whole(100_000)) <= 0, "a number is too large to be raised to"); const one = 1n << PRECISION;
  const halved = BigInt(x.num < x.den ? 0 : lengthOf(x.floor())) + 8n; const toward = (a, b) => (up && a % b ? a / b + 1n : a / b);
  const y = toward(x.num << PRECISION, x.den << halved); let [term, sum, exponent] = [one, one, 0n];
  for (let k = 1n; k < 40n; k += 1n) { term = toward(term * y, k << PRECISION); sum += term; }
  if (up) sum += 1n; // what follows is less than the last term, which is less than a unit
  for (let k = 0n; k < halved; k += 1n) {
    sum = toward(sum * sum, one); exponent *= 2n;
    while (sum >= 2n * one) { sum = toward(sum, 2n); exponent += 1n; }
  }
  const found = new Fraction(sum << exponent, one); known.set(key, found); return found;
}
function claimed(text, name) { // a decimal text, and the unit of its last digit
  const found = /^([0-9]{1,20})(?:\.([0-9]{1,20}))?(?:e([+-]?[0-9]{1,3}))?$/.exec(textOf(text, name)); hold(found, `${name} is no decimal number`);
  hold((found[2] ?? "").length >= 9 || name === "gap", `${name} has fewer than nine decimals`);
  return [Fraction.of(text), Fraction.of(`1e${Number(found[3] ?? 0) - (found[2] ?? "").length}`)];
}
function agrees(text, name, [least, most]) { // the logarithm of what lies between two bounds is a decimal text, within a unit of its last digit
  const [value, unit] = claimed(text, name); hold(power(value.plus(unit), false).compare(most) >= 0, `${name} is ${text}, and may be more`);
  const low = value.minus(unit); hold(low.compare(ZERO) <= 0 || power(low, true).compare(least) <= 0, `${name} is ${text}, and is less`);
}
function asWhole(text) {
  hold(/^[0-9]+$/.test(textOf(text, "a weight")), "a weight is no whole number"); return fraction(text, "a weight", ONE).num;
}
// ---- matrices and what remains of a leakage after one step (§2) ------------------------------------------------------
class Matrix { // rows of weights of the same total
  constructor(value) {
    const [, size, sum, rows] = fields(value, "is states total rows"); this.size = integer(size, "states", 1, 1 << 12);
    this.total = asWhole(sum); this.rows = listed(rows, "rows", this.size).map((row) => this.row(row));
  }
  row(given) { // column, weight, column, weight …, columns ascending
    const row = new Array(this.size).fill(0n); hold(listed(given, "a row").length % 2 === 0, "a row has an odd number of values"); let least = 0;
    for (let k = 0; k < given.length; k += 2) {
      least = integer(given[k], "a column", least, this.size - 1); row[least] = asWhole(given[k + 1]); least += 1;
    }
    hold(row.reduce((a, b) => a + b, 0n) === this.total, "a row does not have the total"); return row;
  }
  excess(slope) { // the largest sum of (q_j - slope d_j) above 0 over all pairs of rows
    const different = [...new Map(this.rows.map((row) => [String(row), row])).values()]; const lower = different.map((row) => row.map((w) => w * slope.num));
    let least = this.total * slope.den;
    for (const row of different) {
      const upper = row.map((w) => w * slope.den);
      for (const other of lower) {
        let shared = 0n;
        for (let k = 0; k < this.size; k += 1) shared += upper[k] < other[k] ? upper[k] : other[k];
        if (shared < least) least = shared;
      } }
    return new Fraction(this.total * slope.den - least, this.total * slope.den);
  }
}
class Loss { // a bound on e**L above, out of excesses at some slopes, and bounds below, out of pairs of rows and sets
  constructor(value, parts) {
    const [, matrix, slopes, witnesses] = fields(value, "is matrix slopes witnesses"); this.matrix = parts.get(matrix, Matrix);
    this.slopes = listed(slopes, "slopes").map((one) => fraction(one, "a slope", ONE));
    const ascend = this.slopes.every((one, k) => (k ? one.compare(this.slopes[k - 1]) > 0 : one.compare(ONE) === 0));
    hold(ascend, "slopes do not ascend from 1"); this.heights = this.slopes.map((one) => this.matrix.excess(one));
    this.masses = listed(witnesses, "witnesses").map((one) => {
      const [i, j, some] = listed(one, "a witness", 3); const inside = bits(ranges(some, this.matrix.size, "a set"));
      const pair = [i, j].map((at) => this.matrix.rows[integer(at, "a row", 0, this.matrix.size - 1)]);
      const [q, d] = pair.map((row) => new Fraction(inside.reduce((sum, k) => sum + row[k], 0n), this.matrix.total));
      hold(q.compare(d) >= 0, "a witness is no more probable in its first row"); return [q, d];
    });
  }
  most(a) { // where (a - 1) * excess(slope), a convex function of the slope, is slope - 1: a chord lies above
    const e = a.minus(ONE); let before = null;
    for (const [k, slope] of this.slopes.entries()) {
      const height = this.heights[k];
      if (e.times(height).compare(slope.minus(ONE)) <= 0) {
        if (before === null) return ONE;
        const fall = height.minus(before[1]).over(slope.minus(before[0])); const top = before[1].minus(fall.times(before[0]));
        return min(a, cut(ONE.plus(e.times(top)).over(ONE.minus(e.times(fall))), true));
      }
      before = [slope, height];
    }
    return min(a, cut(ONE.plus(e.times(before ? before[1] : ONE)), true)); // it does not grow with the slope
  }
  mass(witness) { return this.masses[integer(witness, "a witness", 0, this.masses.length - 1)]; }
  least(a, witness) {
    const [q, d] = this.mass(witness); const e = a.minus(ONE); return cut(ONE.plus(q.times(e)).over(ONE.plus(d.times(e))), false);
  }
}
function side(value, budgets, parts, name) { // the bounds of one side's leakage at each time, in the order in which it grows
  const alone = (one) => [power(one, false), power(one, true)];
  if (value === null) return budgets.map(alone);
  const [steps, leakage, witness, supremum] = fields(value, "steps leakage witness", "supremum"); const times = budgets.length;
  const losses = listed(steps, "steps").map((one) => parts.get(one, Loss, parts)); const found = [];
  hold([1, times - 1].includes(losses.length) || times === 1, "there is not one matrix for each step, or for all");
  hold(new Set(losses.map((one) => one.matrix.size)).size === 1, "matrices differ in size");
  listed(leakage, "leakage", times).forEach((text, t) => {
    let [least, most] = alone(budgets[t]);
    if (t) {
      const loss = losses[losses.length > 1 ? t - 1 : 0]; const at = listed(witness, "witness", times - 1)[t - 1]; const [low, high] = found[t - 1];
      [least, most] = [cut(least.times(loss.least(low, at)), false), cut(most.times(loss.most(high)), true)];
    }
    agrees(text, `${name} leakage ${t}`, [least, most]); found.push([least, most]);
  });
  if (supremum !== null) checkSupremum(supremum, losses, name);
  return found;
}
function checkSupremum(value, losses, name) {
  const [given, text, at] = fields(value, "epsilon value witness"); const epsilon = fraction(given, "epsilon", ZERO); const [loss] = losses;
  hold(losses.length === 1 && epsilon.num > 0n, "a supremum is of one matrix and one budget");
  if (text === "inf") {
    const [q, d] = loss.mass(at); hold(d.num === 0n && q.times(power(epsilon, false)).compare(ONE) >= 0, `the supremum of ${name} leakage is finite`);
    return;
  }
  const [figure, unit] = claimed(text, "a supremum"); const [high, low] = [figure.plus(unit), figure.minus(unit)];
  const after = power(epsilon, true).times(loss.most(power(high, true))); // below a fixed point one step more leaks more, above it less
  hold(after.compare(power(high, false)) <= 0, `the supremum of ${name} leakage may be more than ${text}`);
  const reached = low.num <= 0n || power(epsilon, false).times(loss.least(power(low, false), at)).compare(power(low, true)) >= 0;
  hold(reached, `the supremum of ${name} leakage is less than ${text}`);
}
function leakage(value, parts, report) { // one user's stream (§3)
  const [user, budgets, backward, forward, temporal] = fields(value, "user budgets backward forward temporal");
  const spent = listed(budgets, "budgets").map((one) => fraction(one, "a budget", ZERO));
  hold(spent.length && !report.names.has(textOf(user, "user")), "there is no budget, or a user twice");
  const past = side(backward, spent, parts, "backward"); const future = side(forward, [...spent].reverse(), parts, "forward").reverse();
  listed(temporal, "temporal", spent.length).forEach((text, t) => {
    agrees(text, `temporal leakage ${t}`, [0, 1].map((k) => past[t][k].times(future[t][k]).over(power(spent[t], !k))));
    report.worst = max(report.worst, Fraction.of(text));
  });
  report.names.add(user); report.times += spent.length;
}
// ---- landmarks (§4) -----------------------------------------------------------------------------------------------
function landmarks(value, parts, report, rows) {
  const [epsilon, budgets, marks, losses] = fields(value, "epsilon budgets landmarks losses"); const most = fraction(epsilon, "epsilon", ZERO);
  const spent = listed(budgets, "budgets").map((one) => fraction(one, "a budget", ZERO)); hold(spent.length && !report.times, "there are no times, or two lists of them");
  const mark = new Set(bits(ranges(marks, spent.length, "landmarks"))); const together = total(spent.filter((_, t) => mark.has(t)));
  const withEach = spent.map((one, t) => (mark.has(t) ? together : together.plus(one))); const worst = withEach.reduce(max);
  hold(worst.compare(most) <= 0, `landmarks and one time more spend ${worst}`);
  (losses === null ? [] : listed(losses, "losses", spent.length)).forEach((text, t) => {
    const [found, unit] = claimed(text, "a loss"); hold(found.minus(withEach[t]).abs().compare(unit) <= 0, `the loss of time ${t} is ${withEach[t]}`);
  });
  report.times = spent.length; report.worst = worst; let last = null; const fresh = spent.findIndex((one) => one.num > 0n);
  hold(rows === null || rows.length === spent.length, "there are more or fewer rows than times");
  (rows ?? []).forEach((row, t) => {
    for (const [name, wanted] of [["landmark", mark.has(t)], ["published", spent[t].num > 0n]]) {
      hold([String(wanted), String(Number(wanted))].includes(String(row[name]).toLowerCase()), `row ${t} says ${name} ${row[name]}`);
    }
    hold(Fraction.of(row.epsilon).compare(spent[t]) === 0, `row ${t} says epsilon ${row.epsilon}`);
    const off = losses === null ? ZERO : Fraction.of(row.loss).minus(withEach[t]).abs();
    hold(off.compare(withEach[t].times(new Fraction(BigInt(spent.length), 2n ** 52n))) <= 0, `row ${t} says loss ${row.loss}`);
    const told = Object.entries(row).filter(([name]) => !["time", "landmark", "published", "exact", "epsilon", "loss"].includes(name)).join();
    hold(spent[t].num > 0n || last === null || told === last, `row ${t} has the budget 0 and says something new`);
    if (spent[t].num > 0n || t < fresh) last = told;
  });
}
// ---- counts (§5) --------------------------------------------------------------------------------------------------
const double = (text) => { // what a text says as a double, exactly
  const value = Number(text); hold(Number.isFinite(value) && text !== "", "a count is no number"); let [scaled, exponent] = [value, 0n];
  while (!Number.isInteger(scaled)) { scaled *= 2; exponent += 1n; }
  return new Fraction(BigInt(scaled), 1n << exponent);
};
const placesOf = (row) => Object.entries(row).filter(([name]) => !["time", "exact", "epsilon"].includes(name)).map(([, text]) => double(text));
const equal = (some, others) => some.length === others.length && some.every((one, k) => one.compare(others[k]) === 0);
function digamma(x, up) { // a bound on psi(x + 1) - log X, and X
  const far = x.plus(whole(33)); const over = (k, sign, n) => new Fraction(sign).over([...Array(n)].reduce((a) => a.times(far), whole(k)));
  let terms = total([over(2, -1n, 1), over(12, -1n, 2), over(120, 1n, 4), over(252, -1n, 6), over(240, 1n, 8)]);
  if (!up) terms = terms.minus(over(132, 1n, 10));
  for (let k = 1; k < 33; k += 1) terms = terms.minus(ONE.over(x.plus(whole(k))));
  return [cut(terms, up), far];
}
function beginCounts(value, parts, report) {
  const [users, prior, matrix, integral] = fields(value, "counts prior matrix whole");
  const good = report.users === undefined && ["frequency", "uniform", "given"].includes(prior) && typeof integral === "boolean";
  hold(good, "counts begin twice, or by no prior"); report.users = integer(users, "counts", 1);
  Object.assign(report, { prior, integral, matrix: parts.get(matrix, Matrix), drift: ZERO, before: null });
}
function repaired(value, parts, report, rows, noisy) {
  if (value.has("counts")) { beginCounts(value, parts, report); return; }
  const [time, given, steepness, chances, estimate, cost, gap] = fields(value, "time noisy slope p estimate price gap");
  hold(report.users && integer(time, "time") === report.times, "a time is missing"); const { size } = report.matrix; const { users } = report;
  const [y, r] = [given, estimate].map((some) => listed(some, "counts", size).map((one) => fraction(one, "a count")));
  const p = listed(chances, "p", size).map((one) => fraction(one, "a probability", ZERO)); const slope = fraction(steepness, "slope", ZERO);
  followsFrom(p, y, report);
  if (noisy !== null) {
    const row = noisy[time]; hold(row && equal(placesOf(row), y), "the released row has other noisy counts");
    const off = row.epsilon === undefined ? ZERO : slope.times(whole(2)).over(Fraction.of(row.epsilon)).minus(ONE).abs();
    hold(off.compare(new Fraction(1n, 2n ** 50n)) <= 0, "the released row has another epsilon");
  }
  const price = fraction(cost, "price"); const [claim] = claimed(gap, "gap"); const short = total(r).minus(whole(users)).abs();
  const sums = short.compare(report.integral ? ZERO : new Fraction(BigInt(users), 10n ** 12n)) <= 0;
  hold(sums && r.every((one) => one.num >= 0n), "counts do not sum to the users");
  hold(r.every((one, k) => p[k].num || !one.num), "someone is where no one can be"); let off = report.drift.times(whole(2 * users)); // counted twice
  const some = y.map((one, k) => [one, r[k], p[k]]).filter(([, , chance]) => chance.num);
  if (report.integral) {
    hold(price.num > 0n && r.every((one) => one.den === 1n), "a count is not whole, or a price none");
    off = off.plus(total(some.map((one) => units(...one, slope, price))));
  } else off = total([off, price.abs().times(short), slack(some, slope, price, users)]);
  hold(off.compare(claim) <= 0, `the gap is ${gap}, and may be ${off.toNumber()}`); report.times += 1; report.worst = max(report.worst, claim);
  if (rows !== null) hold(rows[time] && equal(placesOf(rows[time]), r), "the row says other counts");
}
function followsFrom(p, noisy, report) { // where one user is, out of the time before; how far it is from that is added up
  const { matrix, before } = report; let wanted;
  if (before !== null) {
    const common = before.reduce((a, b) => (a > b.den ? a : b.den), 1n); hold(before.every((one) => common % one.den === 0n), "probabilities are no doubles");
    const weights = before.map((one) => one.num * (common / one.den));
    const sums = p.map((_, k) => weights.reduce((sum, w, i) => sum + w * matrix.rows[i][k], 0n)); wanted = sums.map((one) => new Fraction(one, common * matrix.total));
  } else {
    wanted = report.prior === "frequency" ? noisy.map((one) => max(one, ZERO)) : p;
    if (report.prior === "uniform" || wanted.every((one) => !one.num)) wanted = p.map(() => ONE);
    const sum = total(wanted); wanted = wanted.map((one) => one.over(sum));
  }
  hold(p.every((one, k) => one.num > 0n === wanted[k].num > 0n), "a place is possible that is not, or the other way round");
  const ratios = p.flatMap((one, k) => (one.num ? [one.over(wanted[k]), wanted[k].over(one)] : []));
  report.drift = cut(report.drift.plus(ratios.reduce(max).minus(ONE)), true); report.before = p;
}
function units(y, r, p, slope, price) { // by how much units that are in cost more than the price, and those that are out less
  const cost = (k, up) => {
    const beyond = k.minus(y).times(whole(2)).minus(ONE); return k.over(p).times(power(slope.times(max(whole(-1), min(ONE, beyond))), up));
  };
  let [off, k, count] = [ZERO, r, 0];
  for (; k.num > 0n && cost(k, true).compare(price) > 0; k = k.minus(ONE)) { off = off.plus(cost(k, true).over(price).minus(ONE)); hold((count += 1) < 100, "a count is far from the best"); }
  k = r.plus(ONE); count = 0;
  for (; cost(k, false).compare(price) < 0; k = k.plus(ONE)) { off = off.plus(price.over(cost(k, false)).minus(ONE)); hold((count += 1) < 99, "a count is far from the best"); }
  return off;
}
function slack(some, slope, price, users) { // a bound on what moving against the slopes of the objective could gain
  let [above, below] = [ZERO, ZERO];
  for (const [y, r, p] of some) { // e**(slope - price): where r is y, the slope is anything between two
    const sign = r.compare(y); const ways = sign ? [sign, sign] : [-1, 1]; const [[high, far], [low]] = [digamma(r, true), digamma(r, false)];
    const [least, most] = [[high, ways[0], true], [low, ways[1], false]].map(([rest, way, up]) =>
      far.over(p).times(power(rest.plus(slope.times(whole(way))).minus(price), up)));
    above = cut(above.plus(max(ZERO, least.minus(ONE)).times(r)), true); below = max(below, ONE.over(most).minus(ONE)); // what is taken from here, and put
  }
  return above.plus(below.times(whole(users)));
}
// ---- files and words (§6) -------------------------------------------------------------------------------------------
const KINDS = { leakage, landmarks, counts: repaired };
/** Check the lines of a certificate; what is refused says in which line. Rows are lists of objects. */
export function verify(lines, rows = null, noisy = null) {
  const report = { of: null, times: 0, names: new Set(), worst: ZERO }; const parts = new Parts(); let [number, ended] = [0, false];
  try {
    for (const line of lines) {
      number += 1; hold(line.length <= LONGEST_LINE && !ended, "the line is too long, or follows the end"); const value = parse(line);
      if (number === 1) {
        const [version, of] = fields(value, "certificate of"); report.of = of;
        hold(version === 1 && typeof of === "string" && Object.hasOwn(KINDS, of), "it begins no certificate of a known format");
      } else if (value.has("part")) parts.add(value);
      else if (value.has("end")) { [ended] = [fields(value, "end")[0] === report.times]; hold(ended, `it ends with another number than ${report.times}`); }
      else KINDS[report.of](value, parts, report, rows, noisy);
    }
    hold(ended && report.times, "the end is missing, or there is nothing");
    hold(report.of !== "counts" || [rows, noisy].every((some) => some === null || some.length === report.times), "rows have no time here");
  } catch (problem) {
    if (problem instanceof Refused) throw new Refused(`line ${number}: ${problem.message}`);
    if (problem instanceof TypeError || problem instanceof RangeError || problem instanceof SyntaxError) throw new Refused(`line ${number}: it is malformed (${problem.message})`);
    throw problem;
  }
  return report;
}
export function readRows(text) { // the rows of a CSV
  const [head, ...rest] = records(text); return rest.map((cells) => Object.fromEntries(head.map((name, k) => [name, cells[k]])));
}
function main(files) {
  try {
    if (files.length < 1 || files.length > 3) throw new Error("usage: dphmm-verify-more.mjs CERTIFICATE [RELEASED.csv [NOISY.csv]]");
    const [rows, noisy] = [1, 2].map((k) => (files[k] ? readRows(readFileSync(files[k], "utf8")) : null));
    const { of, times, worst } = verify(linesOf(readFileSync(files[0], "utf8")), rows, noisy);
    const what = { leakage: "leakage at most", landmarks: "landmarks and one more time spend at most", counts: "the gap to the most probable counts is at most" };
    console.log(`VERIFIED\n  - ${of} at ${times} times: ${what[of]} ${worst.toNumber()}\nNOT VERIFIED\n  - what dphmm-verify-more names`); return 0;
  } catch (problem) {
    console.log(`${problem instanceof Refused ? "REFUSED" : "cannot be read"}: ${files[0]}: ${problem.message}`);
    return problem instanceof Refused ? 1 : 2;
  }
}
if (process.argv[1] && existsSync(process.argv[1]) && realpathSync(process.argv[1]) === realpathSync(fileURLToPath(import.meta.url))) process.exitCode = main(process.argv.slice(2));
