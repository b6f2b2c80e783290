// The user's functions: how a batch becomes columns of results.

import { readFileSync } from "node:fs";
import { Call, CallError, Cancelled, fromException, isThenable, textOf } from "./call";
import { ROOM, Results, columnReader } from "./columns";
import { Format, GivenColumn, ListedFunction, ReplyColumn, Step, core } from "./core";
import { Misfit, Type } from "./types";

interface Declaration {
  name: string;
  arguments: { name: string; type: Type }[];
  returns: Type;
}

interface Aggregate {
  step(...row: any[]): any;
  merge?(other: Aggregate): any;
  finish(): any;
}

/** Rows that pass between two looks at the client and the clock. */
const ROWS_BETWEEN_LOOKS = 16;
/** Rows that take longer are each looked at. */
const LOOK_MS = 1;
/** Results, and bytes of text, that go out together. */
const [RESULTS_PER_PART, BYTES_PER_PART] = [4096, 1 << 20];
const INT4: Type = { type: "int4", text: "int4" };
const INT8: Type = { type: "int8", text: "int8" };
const TEXT: Type = { type: "text", text: "text" };
const BYTEA: Type = { type: "bytea", text: "bytea" };

/** One function of the handler. */
export class UserFunction {
  readonly name: string;
  readonly kind: string;
  readonly merges: boolean;
  private readonly returns: Type;
  private readonly format: Format;
  private readonly takesColumns: boolean;
  private readonly concurrency: number;
  private readonly takesSignal: boolean;
  private readonly callTypes: Type[];
  private readonly readers: ((column: GivenColumn, rows: number) => any[])[];

  constructor(listed: ListedFunction, declaration: Declaration, readonly target: any) {
    const { name, kind, batch, concurrency } = listed;
    const refuse = (fact: string): never => {
      throw new Error(`function "${name}": ${fact}`);
    };
    if (typeof target !== "function") refuse("the handler exports no function of that name");
    if (!["scalar", "table", "map", "aggregate"].includes(kind)) refuse(`there are no ${kind} functions in JavaScript`);
    if (!["row", "columns"].includes(batch)) refuse('batch can be "row" or "columns"');
    if (batch !== "row" && kind !== "scalar") refuse("only scalar functions take columns");
    this.name = name;
    this.kind = kind;
    this.merges = kind === "aggregate" && typeof target.prototype?.merge === "function";
    this.returns = declaration.returns;
    this.format = listed.format;
    this.takesColumns = batch === "columns";
    this.concurrency = concurrency;
    this.takesSignal = kind !== "aggregate" && target.length > (kind === "map" ? 1 : declaration.arguments.length);
    const types = declaration.arguments.map((argument) => argument.type);
    this.callTypes = kind === "aggregate" ? [INT8, ...types, BYTEA] : types;
    this.readers = this.callTypes.map(columnReader);
  }

  /** The handler's values of a batch. */
  read({ columns, rows }: { columns: GivenColumn[]; rows: number }): any[][] {
    return columns.map((column, position) => {
      try {
        return this.readers[position](column, rows);
      } catch (error) {
        const fact = error instanceof Misfit ? `holds ${error.message}` : `cannot be read (${textOf(error)})`;
        throw new CallError("protocol_violation", `column ${position + 1} ${fact}, which is not of type ${this.callTypes[position].text}`);
      }
    });
  }

  /** The reply's columns, or their last part. */
  async answer(call: Call, columns: any[][]): Promise<[number, ReplyColumn[]]> {
    if (this.kind === "table") return this.answerTable(call, columns);
    const results = new Results(this.returns, this.format);
    const { rows, rowErrors } = call.batch;
    if (this.takesColumns) {
      this.add(results, await this.columnResults(call, columns));
      return [rows, [results.take()]];
    }
    const errors: (string | null)[] | null = rowErrors ? nulls(rows) : null;
    this.add(results, await eachRow(call, this.concurrency, this.invoke(call, columns), errors));
    if (!errors) return [rows, [results.take()]];
    const texts = new Results(TEXT, "z");
    errors.forEach((error) => texts.add(error === null ? null : (error as any).toWellFormed()));
    return [rows, [results.take(), texts.take()]];
  }

  private async columnResults(call: Call, columns: any[][]): Promise<any[]> {
    const { rows } = call.batch;
    const given = columns.length ? columns : [rows];
    let results: any;
    try {
      results = this.takesSignal ? this.target(...given, call.signal) : this.target(...given);
      if (isThenable(results)) results = await results;
      // Typed arrays are columns as well.
      results = results?.length === undefined ? [] : Array.from(results);
    } catch (error) {
      throw fromException(error);
    }
    if (results.length !== rows) throw new CallError("bad_result", `It returned ${results.length} values for ${rows} rows.`);
    return results;
  }

  /** Calls the handler with a row's values. */
  private invoke(call: Call, columns: any[][]): (row: number) => any {
    const target = this.target;
    if (this.takesSignal) return (row) => target(...columns.map((column) => column[row]), call.signal);
    const [first, second] = columns;
    if (columns.length === 1) return (row) => target(first[row]);
    if (columns.length === 2) return (row) => target(first[row], second[row]);
    return (row) => target(...columns.map((column) => column[row]));
  }

  private async answerTable(call: Call, columns: any[][]): Promise<[number, ReplyColumn[]]> {
    const [numbers, results] = [new Results(INT4, "l"), new Results(this.returns, this.format)];
    const invoke = this.invoke(call, columns);
    const give = async () => {
      await call.keepUp();
      if (!core.part(call.batch.work, numbers.rows, [numbers.take(), results.take()])) throw new Cancelled();
    };
    // Gives a promise if the next result has to wait.
    const addOne = (value: any, row: number): Promise<void> | undefined => {
      this.addResult(results, value, row);
      numbers.add(row);
      if (numbers.rows >= RESULTS_PER_PART || results.textBytes >= BYTES_PER_PART) return give();
      return numbers.rows % ROWS_BETWEEN_LOOKS === 0 ? call.look() : undefined;
    };
    await eachRow(call, 1, async (row) => {
      let found = invoke(row);
      if (isThenable(found)) found = await found;
      if (typeof found?.[Symbol.asyncIterator] === "function") {
        for await (const value of found) await addOne(value, row);
        return;
      }
      for (const value of found ?? []) {
        const pause = addOne(isThenable(value) ? await value : value, row);
        if (pause) await pause;
      }
    });
    return [numbers.rows, [numbers.take(), results.take()]];
  }

  /** Answers a map function's stream; `resumed` gives a promise for there being more of it. */
  async answerStream(call: Call, resumed: () => Promise<void>): Promise<[number, ReplyColumn[]]> {
    const results = new Results(this.returns, this.format);
    const give = async () => {
      await call.keepUp();
      if (!core.part(call.batch.work, results.rows, [results.take()])) throw new Cancelled();
    };
    const take = this.batches(call, async () => {
      // Nothing is kept back while the handler waits.
      const wait = resumed();
      if (results.rows) await give();
      await wait;
    });
    // Why the rows ended early. A handler that has caught it would take what it has got for all rows.
    let cut: any;
    const rows = async function* () {
      try {
        for await (const [count, columns] of take) {
          for (let row = 0; row < count; row++) yield columns.map((column) => column[row]);
        }
      } catch (error) {
        cut = error;
        throw error;
      }
    };
    try {
      const found = this.takesSignal ? this.target(rows(), call.signal) : this.target(rows());
      let count = 0;
      for await (const value of (isThenable(found) ? await found : found) ?? []) {
        if (cut !== undefined) throw cut;
        this.addResult(results, value);
        if (results.rows >= RESULTS_PER_PART || results.textBytes >= BYTES_PER_PART) await give();
        if (++count % ROWS_BETWEEN_LOOKS === 0) await call.look();
      }
      if (cut !== undefined) throw cut;
    } catch (error) {
      throw fromException(cut ?? error);
    }
    return [results.rows, [results.take()]];
  }

  private async *batches(call: Call, wait: () => Promise<void>): AsyncGenerator<[number, any[][]]> {
    for (;;) {
      await call.look();
      const taken = core.takeBatch(call.batch.work);
      if (taken === undefined) return;
      if (taken === false) throw new Cancelled();
      if (taken === null) await wait();
      else yield [taken[0], this.read({ rows: taken[0], columns: taken[1] })];
    }
  }

  /** Adds results of all rows in order. */
  add(results: Results, values: any[]): void {
    values.forEach((value, row) => this.addResult(results, value, row));
  }

  private addResult(results: Results, value: any, row?: number): void {
    try {
      results.add(value);
    } catch (error) {
      if (!(error instanceof Misfit)) throw fromException(error, row);
      throw new CallError("bad_result", `It returned ${error.message}; the declared result is ${this.returns.text}.`, row);
    }
  }

  /** Columns of an aggregate function's results. */
  resultColumns(): [Results, Results] {
    return [new Results(this.returns, this.format), new Results(BYTEA, "z")];
  }
}

/** The groups of one exchange of an aggregate function. Instances travel as the JSON text of their fields. */
export class Groups {
  private readonly instances = new Map<bigint, Aggregate>();

  constructor(readonly function_: UserFunction) {}

  /** The reply's columns; steps without results have none. */
  async answer(call: Call, columns: any[][]): Promise<[number, ReplyColumn[]]> {
    const [groups, states] = [columns[0], columns[columns.length - 1]];
    const values = columns.slice(1, -1);
    switch (call.batch.step) {
      case Step.Accumulate:
        await eachRow(call, 1, (row) => this.instance(groups[row]).step(...values.map((column) => column[row])));
        return [0, []];
      case Step.Merge:
        await eachRow(call, 1, (row) => {
          const instance = this.instance(groups[row]);
          if (!instance.merge) throw new CallError("bad_result", `Class ${this.function_.name} has no method merge, which parallel queries need.`, row);
          const other = Object.assign(new this.function_.target(), JSON.parse(states[row].toString(), revive));
          return instance.merge(other);
        });
        return [0, []];
      case Step.Finish: {
        const finished = await eachRow(call, 1, (row) => this.instance(groups[row]).finish());
        const [results, nothing] = this.function_.resultColumns();
        this.function_.add(results, finished);
        finished.forEach(() => nothing.add(null));
        return [finished.length, [results.take(), nothing.take()]];
      }
      case Step.State: {
        const texts = await eachRow(call, 1, (row) => Buffer.from(JSON.stringify(this.instance(groups[row]), replace)));
        const [nothing, results] = this.function_.resultColumns();
        texts.forEach((text) => {
          nothing.add(null);
          results.add(text);
        });
        return [texts.length, [nothing.take(), results.take()]];
      }
      default:
        groups.forEach((group) => this.instances.delete(group));
        return [0, []];
    }
  }

  private instance(group: bigint): Aggregate {
    let instance = this.instances.get(group);
    if (!instance) this.instances.set(group, (instance = new this.function_.target() as Aggregate));
    return instance;
  }
}

// What JSON cannot hold travels under a key that no field has.
const MARK = "\u0000transship";

function replace(this: any, key: string, value: any): any {
  const raw = this[key];
  if (typeof raw === "bigint") return { [MARK]: "bigint", value: raw.toString() };
  if (typeof raw === "number" && (!Number.isFinite(raw) || Object.is(raw, -0))) return { [MARK]: "number", value: Object.is(raw, -0) ? "-0" : String(raw) };
  if (raw instanceof Uint8Array) return { [MARK]: "bytes", value: Buffer.from(raw).toString("base64") };
  if (raw instanceof Map) return { [MARK]: "map", value: [...raw] };
  if (raw instanceof Set) return { [MARK]: "set", value: [...raw] };
  if (raw instanceof Date) return { [MARK]: "date", value: raw.getTime() };
  return value;
}

function revive(_: string, value: any): any {
  switch (value?.[MARK]) {
    case "bigint": return BigInt(value.value);
    case "number": return Number(value.value);
    case "bytes": return Buffer.from(value.value, "base64");
    case "map": return new Map(value.value);
    case "set": return new Set(value.value);
    case "date": return new Date(value.value);
    default: return value;
  }
}

/** A result as it is now: a handler may go on changing a buffer, an array or an object that it returned. */
function asItIs(value: any): any {
  if (typeof value !== "object" || value === null) return value;
  // A copy of the same class: a Buffer's own slice() would share its memory.
  if (value instanceof Uint8Array) return Uint8Array.prototype.slice.call(value);
  if (Array.isArray(value)) return value.map(asItIs);
  if (Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, asItIs(each)]));
}

/** NULLs for so many rows, of which those beyond ROOM are still to be added. */
function nulls(rows: number): any[] {
  return new Array(Math.min(rows, ROOM)).fill(null);
}

/**
 * Calls a function for each row, in order, with at most so many promises under way, and gives what each row has returned. An exception ends
 * the batch and names its row, or becomes the row's error in `errors`, which begins as nulls().
 */
async function eachRow(call: Call, concurrency: number, invoke: (row: number) => any, errors: (string | null)[] | null = null): Promise<any[]> {
  const { rows } = call.batch;
  const results = nulls(rows);
  const running = new Map<number, Promise<void>>();
  let [failedRow, failure]: [number, any] = [Infinity, undefined];
  const failAt = (row: number, error: any) => {
    if (errors && !(error instanceof CallError || error instanceof Cancelled)) errors[row] = fromException(error).message;
    else if (row < failedRow) [failedRow, failure] = [row, error];
  };
  let looked = performance.now();
  for (let row = 0; row < rows && failedRow === Infinity; row++) {
    if (row % ROWS_BETWEEN_LOOKS === 0 || performance.now() - looked > LOOK_MS) {
      const pause = call.look();
      if (pause) await pause;
      looked = performance.now();
    }
    if (row >= ROOM) {
      results.push(null);
      errors?.push(null);
    }
    try {
      const result = invoke(row);
      if (!isThenable(result)) {
        results[row] = asItIs(result);
      } else if (concurrency <= 1) {
        results[row] = asItIs(await result);
        if (call.isOver) throw new Cancelled();
      } else {
        const settled = Promise.resolve(result).then((value) => { results[row] = asItIs(value); }).catch((error) => failAt(row, error));
        running.set(row, settled.finally(() => running.delete(row)));
        if (running.size >= concurrency) await Promise.race(running.values());
        if (call.isOver) throw new Cancelled();
      }
    } catch (error) {
      failAt(row, error);
    }
  }
  // Of several rows that fail, the first one is named: the rows before it may fail as well.
  while ([...running.keys()].some((row) => row < failedRow)) await Promise.race(running.values());
  if (failedRow !== Infinity) throw fromException(failure, failedRow);
  return results;
}

/** The image's functions, in the manifest's order. Throws what is wrong with them. */
export function load(root: string): UserFunction[] {
  const { handler, functions } = JSON.parse(readFileSync(`${root}/functions.json`, "utf8"));
  const compiled = handler.replace(/\.[cm]?ts$/, ".js");
  const module_ = require(`${root}/dist/function/${compiled}`);
  return core.functions().map((listed) => {
    const declaration = functions.find((entry: Declaration) => entry.name === listed.name);
    return new UserFunction(listed, declaration, module_[listed.name]);
  });
}
