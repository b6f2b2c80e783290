// Decimals that a client writes as JSON numbers, docs/protocol.md §6: JSON.parse would round them, and the parser of this version
// of Node does not tell a number's text.

import { Type, attributesOf } from "./types";

const STRING_OR_NUMBER = /["\-\d]/g;
const NUMBER = /[-+.\deE]+/y;

/** Replaces the numbers of columns whose types hold decimals by their texts, as the body has them. */
export function keepDecimals(types: Type[], columns: any, body: Buffer): any {
  const takesDecimals = types.map(holdsDecimals);
  if (!takesDecimals.includes(true) || !Array.isArray(columns)) return columns;
  const texts = JSON.parse(quoteNumbers(body.toString())).columns;
  return columns.map((column, position) => {
    if (!takesDecimals[position] || !Array.isArray(column)) return column;
    return column.map((value, row) => exactly(types[position], value, texts[position][row]));
  });
}

function holdsDecimals(type: Type): boolean {
  if (type.type === "range") return holdsDecimals(type.element!);
  if (type.type === "composite") return type.attributes!.some(holdsDecimals);
  return type.type === "numeric" || (type.type === "array" && holdsDecimals(type.element!));
}

/** A value, and the same with all numbers as texts. What is not of the type stays as it is. */
function exactly(type: Type, value: any, text: any): any {
  if (type.type === "numeric") return typeof value === "number" ? text : value;
  if (value === null || typeof value !== "object" || !holdsDecimals(type)) return value;
  if (type.type === "array") return Array.isArray(value) ? value.map((element, i) => exactly(type.element!, element, text[i])) : value;
  if (Array.isArray(value)) return value;
  const attributes = attributesOf(type).filter(({ name }) => Object.hasOwn(value, name));
  return { ...value, ...Object.fromEntries(attributes.map(({ name, type }) => [name, exactly(type, value[name], text[name])])) };
}

/** Valid JSON with a string in place of each number. */
function quoteNumbers(text: string): string {
  const pieces: string[] = [];
  let copied = 0;
  for (let at = 0; ; ) {
    STRING_OR_NUMBER.lastIndex = at;
    const found = STRING_OR_NUMBER.exec(text);
    if (!found) break;
    if (found[0] === '"') {
      at = endOfString(text, found.index);
      continue;
    }
    NUMBER.lastIndex = found.index;
    const number = NUMBER.exec(text)![0];
    pieces.push(text.slice(copied, found.index), '"', number, '"');
    at = copied = found.index + number.length;
  }
  return pieces.join("") + text.slice(copied);
}

/** Where the string that starts somewhere has ended. */
function endOfString(text: string, start: number): number {
  for (let quote = text.indexOf('"', start + 1); ; quote = text.indexOf('"', quote + 1)) {
    let backslashes = 0;
    while (text[quote - 1 - backslashes] === "\\") backslashes++;
    if (backslashes % 2 === 0) return quote + 1;
  }
}
