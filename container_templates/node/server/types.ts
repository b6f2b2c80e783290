// Values between the JSON form of docs/types.md and the handler's JavaScript. Texts of types that are no numbers come as they are; values
// within arrays, ranges and composite types come in JSON.

/** A type, as functions.json describes it. */
export interface Type {
  type: string;
  text: string;
  element?: Type;
  attributes?: (Type & { name: string })[];
}

/** A value does not fit its type; the message follows "It returned" or "column n holds". */
export class Misfit extends Error {}

export type Convert = (value: any) => any;

const INTEGERS: Record<string, number> = { int2: 2 ** 15, int4: 2 ** 31 };
const INT8_LIMIT = 2n ** 63n;
/** Types whose values in JSON are arrays and objects. */
const NESTED = ["array", "range", "composite", "interval"];
const NUMERIC = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|^NaN$|^-?Infinity$/i;

/** Refuses a value, and shows the start of it. */
export function misfit(value: any): never {
  let text: string;
  try {
    text = typeof value === "bigint" ? `${value}n` : typeof value === "number" ? `${value}` : JSON.stringify(value) ?? String(value);
  } catch {
    text = Object.prototype.toString.call(value);
  }
  throw new Misfit(text.length > 40 ? `${text.slice(0, 40)}...` : text);
}

/** Reads a JSON value of a type into the handler's; throws Misfit. NULL stays null. */
export function reader(type: Type): Convert {
  const read = readerOfValue(type);
  return (value) => (value === null || value === undefined ? null : read(value));
}

function readerOfValue(type: Type): Convert {
  switch (type.type) {
    case "bool":
      return (value) => (typeof value === "boolean" ? value : misfit(value));
    case "int2":
    case "int4":
      return (value) => integer(typeof value === "string" && /^[+-]?\d+$/.test(value) ? Number(value) : value, INTEGERS[type.type]);
    case "int8":
      return (value) => {
        if (typeof value === "number" && Number.isSafeInteger(value)) return BigInt(value);
        if (value === 2 ** 53 || value === -(2 ** 53)) return BigInt(value);
        if (typeof value === "string" && /^[+-]?\d+$/.test(value)) return int8(BigInt(value), value);
        return misfit(value);
      };
    case "float4":
    case "float8":
      return (value) => {
        if (typeof value === "number") return value;
        if (value === "NaN") return NaN;
        if (typeof value === "string" && (/^-?Infinity$/.test(value) || Number.isFinite(parseFloat(value)))) return Number(value);
        return misfit(value);
      };
    case "bytea":
      return (value) => {
        const compact = typeof value === "string" ? value.replace(/\s/g, "") : misfit(value);
        return /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(compact) ? Buffer.from(compact, "base64") : misfit(value);
      };
    case "json":
      return (value) => {
        try {
          return JSON.parse(value);
        } catch {
          return misfit(value);
        }
      };
    case "interval":
      // Microseconds that a number does not hold come as text.
      return (value) => (typeof value === "object" && !Array.isArray(value) && Object.values(value).every(Number.isSafeInteger) ? value : misfit(value));
    case "array": {
      const element = reader(type.element!);
      return (value) => (Array.isArray(value) ? value.map(element) : misfit(value));
    }
    case "range":
    case "composite": {
      const attributes = attributesOf(type).map(({ name, type }) => ({ name, read: reader(type) }));
      return (value) => {
        if (typeof value !== "object" || Array.isArray(value)) misfit(value);
        return Object.fromEntries(attributes.map(({ name, read }) => [name, read(value[name])]));
      };
    }
    default:
      return (value) => (typeof value === "string" ? value : misfit(value));
  }
}

/** Writes a handler's value as the JSON value of a type; throws Misfit. null and undefined are NULL. */
export function writer(type: Type): Convert {
  const write = writerOfValue(type);
  return (value) => (value === null || value === undefined ? null : write(value));
}

function writerOfValue(type: Type): Convert {
  switch (type.type) {
    case "bool":
      return (value) => (typeof value === "boolean" ? value : misfit(value));
    case "int2":
    case "int4":
      return (value) => integer(typeof value === "bigint" ? Number(value) : value, INTEGERS[type.type]);
    case "int8":
      return (value) => {
        if (typeof value === "number" && Number.isSafeInteger(value)) return value;
        if (typeof value !== "bigint") return misfit(value);
        const number = Number(int8(value, value));
        return Number.isSafeInteger(number) ? number : value.toString();
      };
    case "float4":
      return (value) => {
        if (typeof value !== "number") return misfit(value);
        if (Number.isFinite(value) && !Number.isFinite(Math.fround(value))) return misfit(value);
        return float(value);
      };
    case "float8":
      return (value) => (typeof value === "number" ? float(value) : misfit(value));
    case "bytea":
      return (value) => (value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString("base64") : misfit(value));
    case "json":
      return jsonText;
    case "interval":
      return (value) => {
        const parts = [value.months ?? 0, value.days ?? 0, value.microseconds ?? 0];
        return typeof value === "object" && parts.every(Number.isSafeInteger) ? value : misfit(value);
      };
    case "array": {
      const element = writer(type.element!);
      return (value) => (Array.isArray(value) ? value.map(element) : misfit(value));
    }
    case "range":
    case "composite": {
      const attributes = attributesOf(type).map(({ name, type }) => ({ name, write: writer(type) }));
      return (value) => {
        if (typeof value !== "object") misfit(value);
        for (const { name } of attributes) if (!(name in value)) misfit(value);
        return Object.fromEntries(attributes.map(({ name, write }) => [name, write(value[name])]));
      };
    }
    case "numeric":
      return (value) => (typeof value === "string" && NUMERIC.test(value) ? value : misfit(value));
    default:
      return (value) => (typeof value === "string" ? wellFormed(value) : misfit(value));
  }
}

/** Reads the text of a column into the handler's value; throws Misfit. */
export function textReader(type: Type): Convert {
  if (type.type === "json") return readerOfValue(type);
  if (!NESTED.includes(type.type)) return (text) => text;
  const read = readerOfValue(type);
  return (text) => read(JSON.parse(text));
}

/** Writes a handler's value as the text of a column; throws Misfit. The core checks what the text says. */
export function textWriter(type: Type): Convert {
  const write = writerOfValue(type);
  return NESTED.includes(type.type) ? (value) => JSON.stringify(write(value)) : write;
}

/** Attributes of a composite type, and parts of a range, by name. */
export function attributesOf(type: Type): { name: string; type: Type }[] {
  if (type.type === "composite") return type.attributes!.map((attribute) => ({ name: attribute.name, type: attribute }));
  const bool: Type = { type: "bool", text: "bool" };
  return [
    { name: "lower", type: type.element! },
    { name: "upper", type: type.element! },
    { name: "lower_inc", type: bool },
    { name: "upper_inc", type: bool },
    { name: "empty", type: bool },
  ];
}

/** A value as JSON, which has neither NaN nor infinity: JavaScript writes null for them. */
function jsonText(value: any): string {
  const text = JSON.stringify(value) ?? misfit(value);
  if (text.includes("null")) {
    JSON.stringify(value, (_, part) => (typeof part === "number" && !Number.isFinite(part) ? misfit(part) : part));
  }
  return text;
}

/** Half of a surrogate pair has no UTF-8 form. */
function wellFormed(text: string): string {
  return (text as any).isWellFormed() ? text : misfit(text);
}

function integer(value: any, limit: number): number {
  return typeof value === "number" && Number.isInteger(value) && value >= -limit && value < limit ? value : misfit(value);
}

function int8(value: bigint, given: any): bigint {
  return value >= -INT8_LIMIT && value < INT8_LIMIT ? value : misfit(given);
}

function float(value: number): number | string {
  // JSON has neither of these, and JSON.stringify loses the sign of zero.
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  return Object.is(value, -0) ? "-0.0" : value;
}
