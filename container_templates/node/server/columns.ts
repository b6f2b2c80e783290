// Columns as they lie in memory (docs/protocol.md §7): the buffers of the Arrow columnar format, and a header in JSON that
// says where each begins. Values are those of the JSON form, from which types.ts makes the handler's.

import { isUtf8 } from "node:buffer";
import { closeSync, fstatSync, openSync, readSync, writeSync } from "node:fs";
import { CallError, Columns } from "./functions";
import { Type, attributesOf } from "./types";

export const COLUMNS = "application/vnd.transship.columns";
const ALIGNMENT = 64;
// Every buffer begins at a multiple of this.
const READ_ALIGNMENT = 8;
const [DAY, MICROS] = [86_400_000_000n, 1_000_000n];
const INFINITY_DATE = 2 ** 31 - 1;
const INFINITY_MOMENT = 2n ** 63n - 1n;

function violation(fact: string): never {
  throw new CallError("protocol_violation", `the request cannot be read: ${fact}`);
}

/** A batch of calls in this form. */
export class ColumnsRequest {
  readonly header: any;
  private readonly data: Buffer;
  private readonly folder = process.env.TRANSSHIP_SEGMENT_DIR;

  constructor(body: Buffer) {
    const length = body.length < 4 ? Infinity : body.readUInt32LE(0);
    if (4 + length > body.length) violation("its header is cut off");
    try {
      this.header = JSON.parse(body.toString("utf8", 4, 4 + length));
    } catch (error) {
      violation(String(error));
    }
    const places = this.header?.buffers;
    if (!Array.isArray(places) || places.length % 2 || !places.every((place) => Number.isSafeInteger(place) && place >= 0)) violation("it has no buffers");
    const start = Math.ceil((4 + length) / READ_ALIGNMENT) * READ_ALIGNMENT;
    this.data = this.header.segment === undefined ? body.subarray(start) : this.readSegment(this.header.segment, places);
  }

  private readSegment(name: any, places: number[]): Buffer {
    let size = 0;
    for (let i = 0; i < places.length; i += 2) size = Math.max(size, places[i] + places[i + 1]);
    const file = this.open(name, "r");
    try {
      // A size that is not there must not cost its memory.
      if (fstatSync(file).size < size) violation(`segment ${name} has less than ${size} bytes`);
      const data = Buffer.allocUnsafeSlow(size);
      for (let at = 0; at < size; ) {
        const read = readSync(file, data, at, size - at, at);
        if (!read) violation(`segment ${name} has less than ${size} bytes`);
        at += read;
      }
      return data;
    } finally {
      closeSync(file);
    }
  }

  private open(name: any, flags: string): number {
    if (!this.folder || typeof name !== "string" || !/^[0-9a-f]{32}$/.test(name)) violation(`there is no segment ${JSON.stringify(name)}`);
    try {
      return openSync(`${this.folder}/${name}`, flags);
    } catch (error) {
      return violation(`segment ${name} cannot be opened: ${error}`);
    }
  }

  /** The columns of a batch of these types. */
  columns(types: Type[]): Columns {
    const rows = this.header.rows;
    if (!Number.isSafeInteger(rows) || rows < 0) violation("it has no number of rows");
    const reader = new Reader(this.data, this.header.buffers);
    const columns = types.map((type) => reader.column(type, rows));
    if (!reader.isDone) violation("it has more buffers than columns");
    return columns;
  }

  /** The body of the reply with these columns. */
  reply(types: Type[], columns: Columns, micros: number): Buffer {
    const writer = new Writer();
    types.forEach((type, i) => writer.column(type, columns[i]));
    const segment = this.header.reply_segment;
    const header = { batch: this.header.batch ?? 0, rows: columns[0].length, micros, segment, buffers: writer.places };
    const text = Buffer.from(JSON.stringify(header));
    const frame = Buffer.alloc(Math.ceil((4 + text.length) / READ_ALIGNMENT) * READ_ALIGNMENT);
    frame.writeUInt32LE(text.length);
    text.copy(frame, 4);
    if (segment === undefined) return Buffer.concat([frame, writer.data()]);
    const file = this.open(segment, "r+");
    try {
      const data = writer.data();
      for (let at = 0; at < data.length; ) at += writeSync(file, data, at, data.length - at, at);
    } finally {
      closeSync(file);
    }
    return frame;
  }
}

/** Reads columns out of bytes that nobody has checked. */
class Reader {
  private position = 0;

  constructor(private readonly data: Buffer, private readonly places: number[]) {}

  get isDone(): boolean {
    return this.position === this.places.length;
  }

  private buffer(least: number): Buffer {
    if (this.isDone) violation("it has fewer buffers than columns");
    const [offset, length] = this.places.slice(this.position, this.position + 2);
    this.position += 2;
    if (offset % READ_ALIGNMENT || offset + length > this.data.length) violation(`no buffer of ${length} bytes can be at ${offset}`);
    if (length < least) violation(`a buffer has ${length} bytes, not ${least}`);
    return this.data.subarray(offset, offset + length);
  }

  column(type: Type, rows: number): any[] {
    const validity = this.buffer(0);
    if (validity.length && validity.length * 8 < rows) violation(`a validity buffer has ${validity.length} bytes for ${rows} rows`);
    const value = this.values(type, rows);
    const isThere = validity.length ? (row: number) => bit(validity, row) : () => true;
    return Array.from({ length: rows }, (_, row) => (isThere(row) ? value(row) : null));
  }

  /** How the value of a row is read. */
  private values(type: Type, rows: number): (row: number) => any {
    switch (type.type) {
      case "bool": {
        const bits = this.buffer(Math.ceil(rows / 8));
        return (row) => bit(bits, row);
      }
      case "int2": {
        const values = this.buffer(rows * 2);
        return (row) => values.readInt16LE(row * 2);
      }
      case "int4": {
        const values = this.buffer(rows * 4);
        return (row) => values.readInt32LE(row * 4);
      }
      case "int8": {
        const values = this.buffer(rows * 8);
        return (row) => {
          const value = values.readBigInt64LE(row * 8);
          const number = Number(value);
          return Number.isSafeInteger(number) ? number : value.toString();
        };
      }
      case "float4": {
        const values = this.buffer(rows * 4);
        return (row) => values.readFloatLE(row * 4);
      }
      case "float8": {
        const values = this.buffer(rows * 8);
        return (row) => values.readDoubleLE(row * 8);
      }
      case "date": {
        const values = this.buffer(rows * 4);
        return (row) => dateText(values.readInt32LE(row * 4));
      }
      case "timestamp":
      case "timestamptz": {
        const values = this.buffer(rows * 8);
        const zone = type.type === "timestamptz" ? "Z" : "";
        return (row) => momentText(values.readBigInt64LE(row * 8), zone);
      }
      case "time": {
        const values = this.buffer(rows * 8);
        return (row) => timeText(values.readBigInt64LE(row * 8));
      }
      case "uuid": {
        const values = this.buffer(rows * 16);
        return (row) => values.toString("hex", row * 16, row * 16 + 16).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
      }
      case "interval": {
        const values = this.buffer(rows * 16);
        return (row) => {
          const [nanoseconds, at] = [values.readBigInt64LE(row * 16 + 8), row * 16];
          const value = { months: values.readInt32LE(at), days: values.readInt32LE(at + 4), microseconds: Number(nanoseconds / 1000n) };
          return nanoseconds % 1000n ? { ...value, nanoseconds: Number(nanoseconds % 1000n) } : value;
        };
      }
      case "array": {
        const offsets = this.offsets(rows);
        const elements = this.column(type.element!, offsets(rows));
        return (row) => elements.slice(offsets(row), offsets(row + 1));
      }
      case "range":
      case "composite": {
        const parts = attributesOf(type).map(({ name, type }) => ({ name, values: this.column(type, rows) }));
        return (row) => Object.fromEntries(parts.map(({ name, values }) => [name, values[row]]));
      }
      default: {
        const offsets = this.offsets(rows);
        const bytes = this.buffer(offsets(rows));
        if (type.type === "bytea") return (row) => bytes.toString("base64", offsets(row), offsets(row + 1));
        if (!isUtf8(bytes.subarray(0, offsets(rows)))) violation("a text is not UTF-8");
        return (row) => {
          const [start, end] = [offsets(row), offsets(row + 1)];
          // Nor is half of a character.
          if (start < end && (bytes[start] & 0xc0) === 0x80) violation("a text is not UTF-8");
          return bytes.toString("utf8", start, end);
        };
      }
    }
  }

  private offsets(rows: number): (row: number) => number {
    const buffer = this.buffer(rows ? 4 * (rows + 1) : 0);
    if (!rows) return () => 0;
    let before = 0;
    for (let row = 0; row <= rows; row++) {
      const offset = buffer.readInt32LE(row * 4);
      if (offset < before) violation("offsets descend");
      before = offset;
    }
    return (row) => buffer.readInt32LE(row * 4);
  }
}

/** Lays columns out. */
class Writer {
  readonly places: number[] = [];
  private readonly pieces: Buffer[] = [];
  private size = 0;

  data(): Buffer {
    return Buffer.concat(this.pieces, this.size);
  }

  private add(buffer: Buffer): void {
    if (!buffer.length) {
      this.places.push(0, 0);
      return;
    }
    const padding = -this.size & (ALIGNMENT - 1);
    if (padding) this.pieces.push(Buffer.alloc(padding));
    this.places.push(this.size + padding, buffer.length);
    this.pieces.push(buffer);
    this.size += padding + buffer.length;
  }

  column(type: Type, values: any[]): void {
    const rows = values.length;
    this.add(values.includes(null) ? bits(rows, (row) => values[row] !== null) : Buffer.alloc(0));
    const fixed = (width: number, write: (buffer: Buffer, value: any, at: number) => void) => {
      const buffer = Buffer.alloc(rows * width);
      for (let row = 0; row < rows; row++) if (values[row] !== null) write(buffer, values[row], row * width);
      this.add(buffer);
    };
    switch (type.type) {
      case "bool":
        return this.add(bits(rows, (row) => values[row] === true));
      case "int2":
        return fixed(2, (buffer, value, at) => buffer.writeInt16LE(value, at));
      case "int4":
        return fixed(4, (buffer, value, at) => buffer.writeInt32LE(value, at));
      case "int8":
        return fixed(8, (buffer, value, at) => buffer.writeBigInt64LE(BigInt(value), at));
      case "float4":
        return fixed(4, (buffer, value, at) => buffer.writeFloatLE(Number(value), at));
      case "float8":
        return fixed(8, (buffer, value, at) => buffer.writeDoubleLE(Number(value), at));
      case "date":
        return fixed(4, (buffer, value, at) => buffer.writeInt32LE(dateOf(value), at));
      case "timestamp":
      case "timestamptz":
        return fixed(8, (buffer, value, at) => buffer.writeBigInt64LE(momentOf(value), at));
      case "time":
        return fixed(8, (buffer, value, at) => buffer.writeBigInt64LE(timeOf(value), at));
      case "uuid":
        return fixed(16, (buffer, value, at) => buffer.write(value.replaceAll("-", ""), at, "hex"));
      case "interval":
        return fixed(16, (buffer, value, at) => {
          buffer.writeInt32LE(value.months ?? 0, at);
          buffer.writeInt32LE(value.days ?? 0, at + 4);
          buffer.writeBigInt64LE(BigInt(value.microseconds ?? 0) * 1000n + BigInt(value.nanoseconds ?? 0), at + 8);
        });
      case "array":
        this.offsets(values.map((value) => value?.length ?? 0));
        return this.column(type.element!, values.flatMap((value) => value ?? []));
      case "range":
      case "composite":
        for (const { name, type: part } of attributesOf(type)) this.column(part, values.map((value) => value?.[name] ?? null));
        return;
      default: {
        const encoding = type.type === "bytea" ? "base64" : "utf8";
        const bytes = values.map((value) => Buffer.from(value ?? "", encoding));
        this.offsets(bytes.map((value) => value.length));
        return this.add(Buffer.concat(bytes));
      }
    }
  }

  private offsets(lengths: number[]): void {
    const buffer = Buffer.alloc(4 * (lengths.length + 1));
    let end = 0;
    lengths.forEach((length, row) => buffer.writeInt32LE((end += length), 4 * (row + 1)));
    this.add(buffer);
  }
}

function bit(bytes: Buffer, row: number): boolean {
  return ((bytes[row >> 3] >> (row & 7)) & 1) === 1;
}

function bits(rows: number, isSet: (row: number) => boolean): Buffer {
  const bytes = Buffer.alloc(Math.ceil(rows / 8));
  for (let row = 0; row < rows; row++) if (isSet(row)) bytes[row >> 3] |= 1 << (row & 7);
  return bytes;
}

// Dates of any year: the proleptic Gregorian calendar in eras of 400 years (Howard Hinnant, "chrono-Compatible Low-Level
// Date Algorithms").

function civil(days: number): string {
  const shifted = days + 719_468;
  const era = Math.floor(shifted / 146_097);
  const dayOfEra = shifted - era * 146_097;
  const yearOfEra = Math.floor((dayOfEra - Math.floor(dayOfEra / 1460) + Math.floor(dayOfEra / 36_524) - Math.floor(dayOfEra / 146_096)) / 365);
  const dayOfYear = dayOfEra - (365 * yearOfEra + Math.floor(yearOfEra / 4) - Math.floor(yearOfEra / 100));
  const month = Math.floor((5 * dayOfYear + 2) / 153);
  const year = yearOfEra + era * 400 + (month >= 10 ? 1 : 0);
  const sign = year < 0 ? "-" : year > 9999 ? "+" : "";
  const day = dayOfYear - Math.floor((153 * month + 2) / 5) + 1;
  return `${sign}${pad(Math.abs(year), 4)}-${pad(month < 10 ? month + 3 : month - 9, 2)}-${pad(day, 2)}`;
}

function daysOf(year: number, month: number, day: number): number {
  const shifted = month <= 2 ? year - 1 : year;
  const era = Math.floor(shifted / 400);
  const yearOfEra = shifted - era * 400;
  const dayOfYear = Math.floor((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 1;
  return era * 146_097 + yearOfEra * 365 + Math.floor(yearOfEra / 4) - Math.floor(yearOfEra / 100) + dayOfYear - 719_468;
}

function pad(value: number | bigint, digits: number): string {
  return value.toString().padStart(digits, "0");
}

function dateText(days: number): string {
  if (days === INFINITY_DATE) return "infinity";
  return days === -INFINITY_DATE - 1 ? "-infinity" : civil(days);
}

function dateOf(text: string): number {
  if (text === "infinity") return INFINITY_DATE;
  if (text === "-infinity") return -INFINITY_DATE - 1;
  const [, year, month, day] = text.match(/^([+-]?\d+)-(\d\d)-(\d\d)/)!;
  return daysOf(Number(year), Number(month), Number(day));
}

function momentText(micros: bigint, zone: string): string {
  if (micros === INFINITY_MOMENT) return "infinity";
  if (micros === -INFINITY_MOMENT - 1n) return "-infinity";
  const inDay = ((micros % DAY) + DAY) % DAY;
  return `${civil(Number((micros - inDay) / DAY))}T${timeText(inDay)}${zone}`;
}

function momentOf(text: string): bigint {
  if (text === "infinity") return INFINITY_MOMENT;
  if (text === "-infinity") return -INFINITY_MOMENT - 1n;
  const [, date, time, sign, hours, minutes] = text.match(/^(.*)T([\d:.]+)(?:Z|([+-])(\d\d):(\d\d))?$/)!;
  const offset = (BigInt(hours ?? 0) * 60n + BigInt(minutes ?? 0)) * 60n * MICROS;
  return BigInt(dateOf(date)) * DAY + timeOf(time) + (sign === "-" ? offset : -offset);
}

function timeText(micros: bigint): string {
  const seconds = micros / MICROS;
  return `${pad(seconds / 3600n, 2)}:${pad((seconds / 60n) % 60n, 2)}:${pad(seconds % 60n, 2)}.${pad(micros % MICROS, 6)}`;
}

function timeOf(text: string): bigint {
  const [hours, minutes, seconds] = text.split(":");
  const [whole, fraction] = seconds.split(".");
  return ((BigInt(hours) * 60n + BigInt(minutes)) * 60n + BigInt(whole)) * MICROS + BigInt((fraction ?? "").padEnd(6, "0"));
}
