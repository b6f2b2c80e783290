// Columns between the core's plain form (transship_core.h, "columns") and the handler's values.

import { Format, GivenColumn, ReplyColumn } from "./core";
import { Convert, Misfit, Type, misfit, textReader, textWriter } from "./types";

/** The most bytes of text in a column. */
const MOST_BYTES = 2 ** 31 - 1;
/** Longer texts are measured before room is made for them. */
const SHORT = 4096;
/** Rows that room is made for at once. A call of a few bytes may have any number, if they have no arguments or the same ones. */
export const ROOM = 1 << 16;
const INT8_LIMIT = 2n ** 63n;
const LIMITS: Record<string, number> = { int2: 2 ** 15, int4: 2 ** 31 };

export function isSet(bits: Uint8Array, bit: number): boolean {
  return ((bits[bit >> 3] >> (bit & 7)) & 1) === 1;
}

/** Reads columns of a type; throws Misfit. */
export function columnReader(type: Type): (column: GivenColumn, rows: number) => any[] {
  const ofText = textReader(type);
  return ([format, validity, values, bytes], rows) => {
    const valueAt = valuesOf(type, format, values, bytes, ofText);
    const column = new Array(Math.min(rows, ROOM));
    const bits = validity && new Uint8Array(validity);
    for (let row = 0; row < rows; row++) column[row] = !bits || isSet(bits, row) ? valueAt(row) : null;
    return column;
  };
}

function valuesOf(type: Type, format: Format, values: ArrayBuffer, bytes: ArrayBuffer | null, ofText: Convert): (row: number) => any {
  switch (format) {
    case "b": {
      const bits = new Uint8Array(values);
      return (row) => isSet(bits, row);
    }
    case "l": {
      if (type.type === "int8") {
        const integers = new BigInt64Array(values);
        return (row) => integers[row];
      }
      // The lower half of each integer is all of it.
      const halves = new Int32Array(values);
      return (row) => halves[2 * row];
    }
    case "g": {
      const doubles = new Float64Array(values);
      return (row) => doubles[row];
    }
    default: {
      const offsets = new Int32Array(values);
      const text = Buffer.from(bytes!);
      if (type.type === "bytea") return (row) => Buffer.from(text.subarray(offsets[row], offsets[row + 1]));
      return (row) => ofText(text.toString("utf8", offsets[row], offsets[row + 1]));
    }
  }
}

/** A column of results that grows. */
export class Results {
  rows = 0;
  private nulls = 0;
  private capacity = 0;
  private validity = new Uint8Array(0);
  private bits = new Uint8Array(0);
  private integers = new BigInt64Array(0);
  private halves = new Int32Array(0);
  private doubles = new Float64Array(0);
  private offsets = new Int32Array(1);
  private bytes: Buffer = Buffer.alloc(0);
  private size = 0;
  private readonly put: (value: any) => void;

  constructor(type: Type, private readonly format: Format) {
    this.put = this.writer(type);
  }

  /** Bytes of text that it holds. */
  get textBytes(): number {
    return this.size;
  }

  /** Adds a value, of which null and undefined are NULL; throws Misfit, and is as before then. */
  add(value: any): void {
    if (this.rows === this.capacity) this.grow(Math.max(64, this.capacity * 2));
    const row = this.rows;
    if (value === null || value === undefined) {
      this.nulls++;
    } else {
      this.put(value);
      this.validity[row >> 3] |= 1 << (row & 7);
    }
    if (this.format === "z") this.offsets[row + 1] = this.size;
    this.rows++;
  }

  /** Gives what it holds, and is empty then. */
  take(): ReplyColumn {
    const values = { b: this.bits, l: this.integers, g: this.doubles, z: this.offsets }[this.format];
    const column: ReplyColumn = [this.format, this.nulls ? this.validity : null, values, this.format === "z" ? this.bytes : null];
    this.rows = this.nulls = this.capacity = this.size = 0;
    this.grow(0);
    return column;
  }

  private grow(rows: number): void {
    const grown = <T extends { length: number; set(from: T): void }>(array: T, make: new (length: number) => T, length: number): T => {
      const larger = new make(length);
      if (this.rows) larger.set(array);
      return larger;
    };
    this.validity = grown(this.validity, Uint8Array, Math.ceil(rows / 8));
    if (this.format === "b") this.bits = grown(this.bits, Uint8Array, Math.ceil(rows / 8));
    if (this.format === "l") {
      this.integers = grown(this.integers, BigInt64Array, rows);
      this.halves = new Int32Array(this.integers.buffer);
    }
    if (this.format === "g") this.doubles = grown(this.doubles, Float64Array, rows);
    if (this.format === "z") this.offsets = grown(this.offsets, Int32Array, rows + 1);
    if (!this.rows) this.bytes = Buffer.alloc(0);
    this.capacity = rows;
  }

  private writer(type: Type): (value: any) => void {
    switch (type.type) {
      case "bool":
        return (value) => {
          if (typeof value !== "boolean") misfit(value);
          if (value) this.bits[this.rows >> 3] |= 1 << (this.rows & 7);
        };
      case "int2":
      case "int4": {
        const limit = LIMITS[type.type];
        return (value) => {
          const number = typeof value === "bigint" ? Number(value) : value;
          if (typeof number !== "number" || !Number.isInteger(number) || number < -limit || number >= limit) misfit(value);
          this.halves[2 * this.rows] = number;
          this.halves[2 * this.rows + 1] = number < 0 ? -1 : 0;
        };
      }
      case "int8":
        return (value) => {
          const integer = typeof value === "number" && Number.isSafeInteger(value) ? BigInt(value) : value;
          if (typeof integer !== "bigint" || integer < -INT8_LIMIT || integer >= INT8_LIMIT) misfit(value);
          this.integers[this.rows] = integer;
        };
      case "float4":
      case "float8": {
        const isFloat4 = type.type === "float4";
        return (value) => {
          if (typeof value !== "number" || (isFloat4 && Number.isFinite(value) && !Number.isFinite(Math.fround(value)))) misfit(value);
          this.doubles[this.rows] = value;
        };
      }
      case "bytea":
        return (value) => {
          if (!(value instanceof Uint8Array)) misfit(value);
          this.reserve(value.byteLength);
          this.bytes.set(value, this.size);
          this.size += value.byteLength;
        };
      default: {
        const toText = textWriter(type);
        return (value) => {
          const text: string = toText(value);
          this.reserve(text.length > SHORT ? Buffer.byteLength(text) : text.length * 3);
          this.size += this.bytes.write(text, this.size, "utf8");
        };
      }
    }
  }

  private reserve(more: number): void {
    const least = this.size + more;
    if (least <= this.bytes.length) return;
    if (least > MOST_BYTES) throw new Misfit("more than 2 GiB with the rows before it");
    const larger = Buffer.allocUnsafeSlow(Math.min(MOST_BYTES, Math.max(1024, this.bytes.length * 2, least)));
    this.bytes.copy(larger, 0, 0, this.size);
    this.bytes = larger;
  }
}

