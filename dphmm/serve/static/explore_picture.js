// The picture of a panel: its settings, map, legend and figures on one canvas.

const SCALE = 2, MARGIN = 12, LINE = 18, MAX_LINES = 8, SIZE = 13, FAMILY = "system-ui, sans-serif";
const INK = "#1c2430", SOFT = "#5b6673", WARNING = "#c0392b";

function wrap(context, text, width) {
  // Lines of at most a width; words that are longer are broken. Text of the user may have any length.
  const lines = [""];
  for (const word of text.split(/(?<=\s)/)) {
    if (lines.at(-1) && context.measureText(lines.at(-1) + word.trimEnd()).width > width) lines.push("");
    for (const character of word) {
      if (lines.length > MAX_LINES) return [...lines.slice(0, MAX_LINES - 1), lines[MAX_LINES - 1].trimEnd() + "…"];
      if (context.measureText(lines.at(-1) + character).width > width) {
        if (character === " ") continue;
        lines.push("");
      }
      lines[lines.length - 1] += character;
    }
  }
  return lines;
}

function drawMap(context, container) {
  const outer = container.getBoundingClientRect(), toPicture = (box) => [box.left - outer.left, box.top - outer.top];
  context.beginPath();
  context.rect(0, 0, outer.width, outer.height);
  context.clip();
  context.fillStyle = getComputedStyle(container).backgroundColor;
  context.fillRect(0, 0, outer.width, outer.height);
  const order = (canvas) => Number(getComputedStyle(canvas.parentElement).zIndex) || 0;
  const canvases = [...container.querySelectorAll(".leaflet-pane canvas")].sort((one, other) => order(one) - order(other));
  for (const canvas of canvases) {
    const box = canvas.getBoundingClientRect();
    context.drawImage(canvas, ...toPicture(box), box.width, box.height);
  }
  for (const label of container.querySelectorAll(".leaflet-marker-pane span, .leaflet-control-scale-line, .leaflet-control-attribution")) {
    const style = getComputedStyle(label), [left, top] = toPicture(label.getBoundingClientRect());
    if (style.visibility === "hidden") continue;
    const box = label.getBoundingClientRect(), text = label.textContent.trim();
    context.font = `${style.fontWeight} ${style.fontSize} ${FAMILY}`;
    context.lineWidth = 3;
    context.strokeStyle = "#ffffff";
    context.fillStyle = style.color;
    // Fonts of a canvas may be wider than those of the page: texts at the right border end there.
    const start = Math.min(left, outer.width - context.measureText(text).width - 3);
    for (const paint of ["strokeText", "fillText"]) context[paint](text, start, top + parseFloat(style.fontSize));
    if (label.classList.contains("leaflet-control-scale-line")) context.fillRect(left, top + box.height - 1, box.width, 2);
  }
}

function drawLegend(context, legend, ramp) {
  // Marks and words of a legend, where the page has them.
  const outer = legend.getBoundingClientRect();
  for (const node of legend.querySelectorAll("i")) {
    const style = getComputedStyle(node), box = node.getBoundingClientRect(), place = [box.left - outer.left, box.top - outer.top, box.width, box.height];
    if (!box.width) continue; // a hidden entry
    context.fillStyle = style.backgroundColor;
    if (node.classList.contains("ramp")) {
      context.fillStyle = context.createLinearGradient(place[0], 0, place[0] + box.width, 0);
      ramp.forEach((colour, k) => context.fillStyle.addColorStop(k / (ramp.length - 1), `rgb(${colour.join()})`));
    }
    context.beginPath();
    context.roundRect(...place, Math.min(box.height / 2, parseFloat(style.borderTopLeftRadius) || 0));
    context.fill();
    if (!parseFloat(style.borderTopWidth)) continue;
    context.strokeStyle = style.borderTopColor;
    context.lineWidth = parseFloat(style.borderTopWidth);
    context.setLineDash(style.borderTopStyle === "dotted" ? [2, 2] : []);
    context.stroke();
    context.setLineDash([]);
  }
  context.font = `${SIZE}px ${FAMILY}`;
  context.fillStyle = INK;
  const texts = document.createTreeWalker(legend, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode()) {
    const { data } = texts.currentNode, text = data.trim();
    // Without the space after the mark. A text of several lines begins where its first line does.
    range.setStart(texts.currentNode, data.length - data.trimStart().length);
    range.setEnd(texts.currentNode, data.length);
    const [box] = range.getClientRects();
    if (text && box) wrap(context, text, outer.right - box.left).forEach((line, k) => context.fillText(line, box.left - outer.left, box.top - outer.top + LINE * k + SIZE));
  }
  return outer.height;
}

// Lengths are in CSS pixels. paragraphs: before the map, each with text and whether it is a warning. rows: names and values after it.
export async function drawPicture({ container, legends, ramp, paragraphs, rows }) {
  const width = container.clientWidth, measure = document.createElement("canvas").getContext("2d");
  const font = (bold) => `${bold ? "600 " : ""}${SIZE}px ${FAMILY}`, nameWidth = width * 0.4;
  const layOut = (text, bold, space) => { measure.font = font(bold); return wrap(measure, text, space); };
  const before = paragraphs.map(({ text, isWarning }) => ({ isWarning, lines: layOut(text, isWarning, width) }));
  const after = rows.map(([name, value]) => [layOut(name, false, nameWidth - MARGIN), layOut(value, false, width - nameWidth)]);
  const rowHeight = ([name, value]) => LINE * Math.max(name.length, value.length);
  const shown = legends.filter((legend) => legend.offsetHeight);
  const height = LINE * before.reduce((sum, { lines }) => sum + lines.length, 0) + container.clientHeight
    + shown.reduce((sum, legend) => sum + legend.offsetHeight + MARGIN / 2, 0) + after.reduce((sum, row) => sum + rowHeight(row), 0) + 4 * MARGIN;

  const canvas = Object.assign(document.createElement("canvas"), { width: SCALE * (width + 2 * MARGIN), height: SCALE * height });
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, width + 2 * MARGIN, height);
  context.translate(MARGIN, MARGIN);
  const write = (lines, left, colour, bold) => {
    context.font = font(bold);
    context.fillStyle = colour;
    lines.forEach((line, k) => context.fillText(line, left, LINE * k + SIZE));
  };
  for (const { lines, isWarning } of before) {
    write(lines, 0, isWarning ? WARNING : INK, isWarning);
    context.translate(0, LINE * lines.length);
  }
  context.translate(0, MARGIN);
  context.save();
  drawMap(context, container);
  context.restore();
  context.translate(0, container.clientHeight + MARGIN);
  for (const legend of shown) context.translate(0, drawLegend(context, legend, ramp) + MARGIN / 2);
  for (const row of after) {
    write(row[0], 0, SOFT);
    write(row[1], nameWidth, INK);
    context.translate(0, rowHeight(row));
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
