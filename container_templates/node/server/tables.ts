// The shared tables of a call (docs/protocol.md §4.13): what handlers import as "transship".

import { AsyncLocalStorage } from "node:async_hooks";
import { Results, columnReader, isSet } from "./columns";
import { ListedTable, RowsHandle, TableHandle, Work, core } from "./core";
import { Misfit, Type } from "./types";

/** A row of a table: its values by the names of the columns. */
export type Row = Record<string, any>;

/** Opens a shared table that the function's key `tables` names. Only code that a call has begun may do so, until the call has ended. */
export function table(name: string): Table {
  const tables = current.getStore();
  if (!tables) throw new Error(`no shared table "${name}": no call that has shared tables runs here`);
  return tables.open(name);
}

/** A shared table, which never changes. It can be read until its call has ended; what was read may be kept. */
export class Table {
  private readonly listed: ListedTable;
  private readonly types: Type[];
  private readonly keyColumns: number[];

  /** @internal */
  constructor(private readonly handle: TableHandle) {
    this.listed = core.describeTable(handle);
    this.types = this.listed.fields.map((field) => typeOf(field.type));
    this.keyColumns = this.listed.fields.flatMap((field, column) => (field.key < 0 ? [] : [column]));
    this.keyColumns.sort((a, b) => this.listed.fields[a].key - this.listed.fields[b].key);
  }

  /** The number of rows. */
  get length(): number {
    return this.listed.rows;
  }

  /** The names and types of the columns. */
  get columns(): { name: string; type: string }[] {
    return this.listed.fields.map(({ name, type }) => ({ name, type }));
  }

  /** The names of the key's columns. */
  get key(): string[] {
    return this.keyColumns.map((column) => this.listed.fields[column].name);
  }

  /** The row of a key, null if there is none; throws if the key has several. A key of several columns is an array of values. */
  get(key: any): Row | null {
    const parts = this.keyColumns.length === 1 ? [key] : key;
    if (!Array.isArray(parts)) throw this.wrongCount();
    const found = this.find(parts.map((part) => [part]), false);
    try {
      return found.row(0);
    } finally {
      found.free();
    }
  }

  /**
   * One row per key, in their order, of which all columns are null if the table has no such row; throws if a key has several. `keys` is an array
   * or a typed array of values; for a key of several columns it is an array of these.
   */
  lookup(keys: ArrayLike<any>): Rows {
    return this.find(this.columnsOf(keys), false);
  }

  /** All rows of all keys, in the order of the keys, which are as for `lookup`. */
  matches(keys: ArrayLike<any>): Rows {
    return this.find(this.columnsOf(keys), true);
  }

  /** All rows, batch by batch. A batch can be read until the next one is taken. */
  *batches(): Generator<Rows> {
    for (let number = 0; number < this.listed.batches; number++) {
      const rows = this.rows(core.tableBatch(this.handle, number));
      try {
        yield rows;
      } finally {
        rows.free();
      }
    }
  }

  /** @internal */
  close(): void {
    core.closeTable(this.handle);
  }

  private columnsOf(keys: ArrayLike<any>): ArrayLike<any>[] {
    return this.keyColumns.length === 1 ? [keys] : Array.from(keys);
  }

  private find(columns: ArrayLike<any>[], all: boolean): Rows {
    if (columns.length !== this.keyColumns.length || !columns.length) throw this.wrongCount();
    const count = columns[0].length;
    const keys = columns.map((values, position) => {
      const column = this.keyColumns[position];
      const { name, type, format } = this.listed.fields[column];
      if (values.length !== count) throw new TypeError("the columns of the keys differ in length");
      const given = new Results(this.types[column], format);
      try {
        for (let row = 0; row < count; row++) given.add(values[row]);
      } catch (error) {
        if (!(error instanceof Misfit)) throw error;
        throw new TypeError(`the keys do not fit column "${name}" of type ${type}: ${error.message}`);
      }
      return given.take();
    });
    return this.rows(core.lookUp(this.handle, count, keys, all));
  }

  private rows(handle: RowsHandle): Rows {
    return new Rows(handle, this.listed, this.types);
  }

  private wrongCount(): Error {
    if (!this.keyColumns.length) return new TypeError("the table has no key");
    return new TypeError(`the key has ${this.keyColumns.length} columns: ${this.key.join(", ")}`);
  }
}

/** Rows of a table. Columns are read when they are asked for. */
export class Rows implements Iterable<Row | null> {
  /** The number of rows. */
  readonly length: number;
  /** Of `matches`: the position of each row's key among the keys. */
  readonly positions: Int32Array | null;
  private readonly validity: Uint8Array | null;
  private readonly read = new Map<number, any[]>();

  /** @internal */
  constructor(private readonly handle: RowsHandle, private readonly listed: ListedTable, private readonly types: Type[]) {
    const [count, validity, positions] = core.describeRows(handle);
    this.length = count;
    this.validity = validity && new Uint8Array(validity);
    this.positions = positions && new Int32Array(positions);
  }

  /** A column's values, one per row. */
  column(name: string): any[] {
    const number = this.listed.fields.findIndex((field) => field.name === name);
    if (number < 0) throw new RangeError(`the table has no column "${name}"`);
    return this.values(number);
  }

  /** A row by its number, null where a key has none. */
  row(number: number): Row | null {
    if (!(number >= 0 && number < this.length) || (this.validity && !isSet(this.validity, number))) return null;
    return Object.fromEntries(this.listed.fields.map(({ name }, column) => [name, this.values(column)[number]]));
  }

  *[Symbol.iterator](): Iterator<Row | null> {
    for (let number = 0; number < this.length; number++) yield this.row(number);
  }

  /** @internal */
  free(): void {
    core.freeRows(this.handle);
  }

  private values(column: number): any[] {
    let values = this.read.get(column);
    if (!values) {
      values = columnReader(this.types[column])(core.rowsColumn(this.handle, column, this.length), this.length);
      this.read.set(column, values);
    }
    return values;
  }
}

/** The tables of a call, for the server alone. */
export class Tables {
  private readonly opened = new Map<string, Table>();
  private isOver = false;

  private constructor(private readonly work: Work) {}

  /** Those that the caller has given; undefined if it has given none. */
  static of(work: Work): Tables | undefined {
    return core.hasTables(work) ? new Tables(work) : undefined;
  }

  /** Answers the call: what it begins can open the tables. */
  run(answer: () => void): void {
    current.run(this, answer);
  }

  open(name: string): Table {
    if (this.isOver) throw new Error(`no shared table "${name}": the call has ended`);
    let found = this.opened.get(name);
    if (!found) this.opened.set(name, (found = new Table(core.openTable(this.work, name))));
    return found;
  }

  close(): void {
    this.isOver = true;
    for (const table of this.opened.values()) table.close();
    this.opened.clear();
  }
}

/** The tables of the call that has begun what runs now. Calls without tables do not pay for that. */
const current = new AsyncLocalStorage<Tables>();

/** A type by its text. Shared tables have no composite types and no ranges. */
function typeOf(text: string): Type {
  if (text.endsWith("[]")) return { type: "array", text, element: typeOf(text.slice(0, -2)) };
  return { type: text, text };
}
