// Judges every vector of a file with a second verifier: prints, as JSON, the line that it refuses in each, or 0.
import { readFileSync } from "node:fs";
const { verify, readRows, Refused } = await import(process.argv[2]);
const { bases, vectors } = JSON.parse(readFileSync(process.argv[3], "utf8"));
const found = {};
for (const { name, base, replaced, rows } of vectors) {
  const lines = [...bases[base].lines];
  for (const [first, count, put] of replaced) lines.splice(first, count, ...put);
  const published = rows ?? bases[base].rows;
  let given = published === null ? [null] : [readRows(published)];
  if (bases[base].halves) given = [given[0].slice(given[0].length / 2), given[0].slice(0, given[0].length / 2)];
  try {
    verify(lines, ...given);
    found[name] = 0;
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    found[name] = problem.message;
  }
}
console.log(JSON.stringify(found));
