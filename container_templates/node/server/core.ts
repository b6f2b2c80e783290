// The server core (transship_core.h), as addon.c gives it to JavaScript. There is one server per process.

/** A unit of work that has not been answered. */
export type Work = { readonly __work: never };

/** Formats of plain columns: bits, integers of 64 bits, doubles, and bytes. */
export type Format = "b" | "l" | "g" | "z";

/** A column of a call: its format, its bits of validity, its values or offsets, and its bytes. */
export type GivenColumn = [Format, ArrayBuffer | null, ArrayBuffer, ArrayBuffer | null];

/** A column of a reply. */
export type ReplyColumn = [Format, Uint8Array | null, Uint8Array | BigInt64Array | Float64Array | Int32Array, Uint8Array | null];

/** What is to be done with a batch, `transship_step`. */
export enum Step { Call, Accumulate, Merge, Finish, State, Forget, End, Map, Resume }

/** A batch of calls, `transship_work_info`. */
export interface Batch {
  work: Work;
  columns: GivenColumn[];
  function: number;
  step: Step;
  /** Not 0 if rows have errors of their own. */
  rowErrors: number;
  exchange: number;
  rows: number;
}

export interface ListedFunction {
  name: string;
  kind: string;
  batch: string;
  /** Format of a column of results. */
  format: Format;
  /** Calls of a batch that may be under way at a time. */
  concurrency: number;
}

/** A shared table that is open, and rows of one. */
export type TableHandle = { readonly __table: never };
export type RowsHandle = { readonly __rows: never };

export interface ListedTable {
  rows: number;
  batches: number;
  /** `key` is the position among the key's columns, or below zero. */
  fields: { name: string; type: string; format: Format; key: number }[];
}

interface Core {
  create(config: string): void;
  functions(): ListedFunction[];
  describe(merging: number[]): string;
  /** Listens, and calls back when work waits. */
  start(onReady: () => void): void;
  /** Null if nothing waits, undefined after the end. */
  next(): Batch | null | undefined;
  /** The next batch of a map function's stream; null if there is none yet, undefined after the last, false if nobody waits any more. */
  takeBatch(work: Work): [number, GivenColumn[]] | null | undefined | false;
  stopWaiting(): void;
  isCancelled(work: Work): boolean;
  /** Whether `part` would wait for the client. */
  isBehind(work: Work): boolean;
  /** Gives a part of a table function's reply; false if nobody waits for it. */
  part(work: Work, rows: number, columns: ReplyColumn[]): boolean;
  /** Ends work; steps without results have no columns. */
  answer(work: Work, rows: number, columns: ReplyColumn[]): void;
  /** Ends work with an error; row is -1 if no single row is to blame. */
  fail(work: Work, kind: string, message: string, traceback: string | null, row: number): void;
  /** Whether the caller has given tables to the work. */
  hasTables(work: Work): boolean;
  openTable(work: Work, name: string): TableHandle;
  closeTable(table: TableHandle): void;
  describeTable(table: TableHandle): ListedTable;
  tableBatch(table: TableHandle, number: number): RowsHandle;
  /** One row per key, or with `all` all rows of all keys. */
  lookUp(table: TableHandle, keys: number, columns: ReplyColumn[], all: boolean): RowsHandle;
  /** How many rows there are; bits of which 0 is a key without a row; the position of each row's key. */
  describeRows(rows: RowsHandle): [number, ArrayBuffer | null, ArrayBuffer | null];
  rowsColumn(rows: RowsHandle, column: number, count: number): GivenColumn;
  freeRows(rows: RowsHandle): void;
}

export const core: Core = require("../../transship.node");
