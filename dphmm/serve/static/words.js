// Texts of the page in its language, and numbers, lengths and times in that language's format.

const texts = JSON.parse(document.querySelector("meta[name=texts]").content);
export const language = document.documentElement.lang;
const locale = navigator.languages.find((tag) => tag.split("-")[0] === language) || language;

export function translate(key, values = {}) {
  return texts[key].replace(/{(\w+)}/g, (placeholder, name) => name in values ? values[name] : placeholder);
}

export function formatNumber(value, digits = 3) {
  // Small budgets have significant digits; the remainder of a sum of floats has none.
  const options = Math.abs(value) < 1 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: digits };
  return Number(value.toFixed(9)).toLocaleString(locale, options);
}
export function formatPercent(share) {
  // Probabilities below one per cent are not shown as zero.
  const options = share < 0.0095 ? { maximumSignificantDigits: 1 } : { maximumFractionDigits: 0 };
  return share.toLocaleString(locale, { style: "percent", ...options });
}
const formatUnit = (value, name, digits) => value.toLocaleString(locale, { style: "unit", unit: name, maximumFractionDigits: digits });

export function formatLength(metres) {
  if (metres === null || metres === undefined) return "–";
  return metres >= 950 ? formatUnit(metres / 1000, "kilometer", metres < 9950 ? 1 : 0)
    : formatUnit(metres < 100 ? Math.round(metres) : 10 * Math.round(metres / 10), "meter", 0);
}

export function formatError({ error_m, max_posterior }) {
  // That of a rounded location is an upper bound. Rounded messages have no probabilities.
  return (max_posterior === null ? "≤\u00a0" : "") + formatLength(error_m);
}

export function formatTime(time) {
  // Times of today are shown without the date.
  const date = typeof time === "number" ? new Date(1000 * time) : new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return date.toLocaleString(locale, isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

export function describeLocation(inference) {
  // The direction from the centre of a town, or a distance from it.
  if (!inference.town) return translate("where_point", { distance: formatLength(3 * inference.error_m) });
  if (inference.side) return translate("where_" + inference.side, { town: inference.town });
  return translate("where_within", { town: inference.town, distance: formatLength(inference.within_m) });
}

document.getElementById("language")?.addEventListener("change", ({ target }) => {
  document.cookie = `dphmm-language=${target.value}; samesite=strict; max-age=31536000`;
  location.reload();
});
