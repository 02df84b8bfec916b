// The texts of the page in its language, and numbers, lengths and times as that language writes them.

const texts = JSON.parse(document.querySelector("meta[name=texts]").content);
export const language = document.documentElement.lang;
const locale = navigator.languages.find((one) => one.split("-")[0] === language) || language;

export function say(key, values = {}) {
  return texts[key].replace(/{(\w+)}/g, (whole, name) => name in values ? values[name] : whole);
}

export const number = (value, digits = 4) => Number(value.toFixed(digits)).toLocaleString(locale);
export const percent = (share) => share.toLocaleString(locale, { style: "percent", maximumFractionDigits: 0 });
const unit = (value, name, digits) => value.toLocaleString(locale, { style: "unit", unit: name, maximumFractionDigits: digits });

export function metres(value) {
  if (value === null || value === undefined) return "–";
  return value >= 950 ? unit(value / 1000, "kilometer", value < 9950 ? 1 : 0)
    : unit(value < 100 ? Math.round(value) : 10 * Math.round(value / 10), "meter", 0);
}

export function when(moment) {
  // Today's times without their date.
  const date = typeof moment === "number" ? new Date(1000 * moment) : new Date(moment);
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString(locale, today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

export function whereOf(known) {
  // In which part of a town, or how near to it.
  if (!known.town) return say("where_point", { far: metres(3 * known.off_m) });
  if (known.side) return say("where_" + known.side, { town: known.town });
  return say("where_within", { town: known.town, far: metres(known.within_m) });
}

document.getElementById("language").addEventListener("change", ({ target }) => {
  document.cookie = `dphmm-language=${target.value}; samesite=strict; max-age=31536000`;
  location.reload();
});
