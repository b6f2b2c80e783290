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
}

export const core: Core = require("../../transship.node");
