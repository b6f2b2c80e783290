// Decimals and large integers that a client writes as JSON numbers, docs/protocol.md §6: JSON.parse would round them, and the parser of
// this version of Node does not tell a number's text.

import { Type, attributesOf } from "./types";

const STRING_OR_NUMBER = /["\-\d]/g;
const NUMBER = /[-+.\deE]+/y;
/** Part of each number that JSON.parse may round to an integer of 2^53, or that no double can hold. */
const BEYOND_DOUBLE = /900719925474099|\d[eE]|\d{309}/;
/** The types whose values a double holds, but for those. */
const DOUBLES = ["int8", "float4", "float8"];
const LARGEST_EXACT = 2 ** 53;
/** Digits before and behind the point that a decimal of PostgreSQL has at most. */
const MAX_WHOLE_DIGITS = 131_072;
const MAX_FRACTION_DIGITS = 16_383;

/** Replaces numbers that may be rounded by their digits, as the body has them. */
export function keepDigits(types: Type[], columns: any, body: Buffer): any {
  if (!Array.isArray(columns) || !types.some((type) => holds(["numeric", ...DOUBLES], type))) return columns;
  const text = body.toString();
  const rounded = BEYOND_DOUBLE.test(text) ? ["numeric", ...DOUBLES] : ["numeric"];
  const isExact = types.map((type) => !holds(rounded, type));
  if (!isExact.includes(false)) return columns;
  const texts = JSON.parse(quoteNumbers(text)).columns;
  return columns.map((column, position) => {
    if (isExact[position] || !Array.isArray(column)) return column;
    return column.map((value, row) => exactly(types[position], value, texts[position][row]));
  });
}

/** Whether values of a type are, or hold, values of one of these. */
function holds(names: string[], type: Type): boolean {
  if (type.type === "range" || type.type === "array") return holds(names, type.element!);
  return names.includes(type.type) || (type.type === "composite" && type.attributes!.some((attribute) => holds(names, attribute)));
}

/** A number's digits without an exponent, as docs/types.md has them; undefined if numeric has no room for them. */
function digitsOf(number: string): string | undefined {
  const [, sign, whole, fraction = "", power] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$/.exec(number)!;
  if (power === undefined) return number;
  const digits = whole + fraction;
  if (/^0+$/.test(digits)) return `${sign}0`;
  const point = whole.length + Number(power);
  if (point > MAX_WHOLE_DIGITS || digits.length - point > MAX_FRACTION_DIGITS) return undefined;
  if (point <= 0) return `${sign}0.${"0".repeat(-point)}${digits}`;
  const left = digits.slice(0, point).padEnd(point, "0").replace(/^0+(?=\d)/, "");
  return sign + left + (point < digits.length ? `.${digits.slice(point)}` : "");
}

/** An integer that is written with a point or an exponent; what is no integer stays as it is, and is refused. */
function wholeNumber(number: string): string {
  return digitsOf(number)?.replace(/\.0*$/, "") ?? number;
}

/** A value, and the same with all numbers as texts. What is not of the type stays as it is. */
function exactly(type: Type, value: any, text: any): any {
  if (type.type === "numeric") return typeof value === "number" ? digitsOf(text) ?? value : value;
  if (type.type === "int8") return typeof value === "number" && Math.abs(value) === LARGEST_EXACT ? wholeNumber(text) : value;
  // The reader refuses such a text.
  if (type.type === "float4" || type.type === "float8") return value === Infinity || value === -Infinity ? text : value;
  if (value === null || typeof value !== "object") return value;
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
