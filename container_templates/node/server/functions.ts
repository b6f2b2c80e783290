// The user's functions: how a batch of JSON columns becomes columns of results (docs/protocol.md §4 and §6).

import { readFileSync } from "node:fs";
import { Convert, Misfit, Type, reader, writer } from "./types";

/** A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch. */
export class CallError extends Error {
  constructor(readonly kind: string, message: string, readonly row?: number, readonly traceback?: string) {
    super(message);
  }

  toWire(): object {
    return { kind: this.kind, message: this.message, row: this.row, traceback: this.traceback };
  }
}

/** The client has gone; nobody waits for the rest. */
export class Cancelled extends Error {}

export type Columns = any[][];
export type IsCancelled = () => boolean;

interface Declaration {
  name: string;
  kind: string;
  batch: string;
  arguments: { name: string; type: Type }[] | null;
  returns: Type | null;
}

interface Aggregate {
  step(...row: any[]): any;
  merge?(other: Aggregate): any;
  finish(): any;
}

const ROWS_BETWEEN_CHECKS = 256;
const INT4: Type = { type: "int4", text: "int4" };
const INT8: Type = { type: "int8", text: "int8" };
const BYTEA: Type = { type: "bytea", text: "bytea" };

/** One function of the handler. */
export class UserFunction {
  readonly name: string;
  readonly kind: string;
  readonly arguments: { name: string; type: Type }[];
  readonly returns: Type;
  /** Types of the columns of a batch of calls. */
  readonly callTypes: Type[];
  /** Types of a reply's columns. */
  readonly replyTypes: Type[];
  private readonly readers: Convert[];
  private readonly write: Convert;

  constructor(declaration: Declaration, readonly target: any) {
    const { name, kind } = declaration;
    if (typeof target !== "function") throw new Error(`the handler exports no function "${name}"`);
    if (!["scalar", "table", "aggregate"].includes(kind)) throw new Error(`function "${name}": there are no ${kind} functions in JavaScript`);
    if (!["row", "columns"].includes(declaration.batch)) throw new Error(`function "${name}": batch can be "row" or "columns"`);
    if (declaration.batch !== "row" && kind !== "scalar") throw new Error(`function "${name}": only scalar functions take columns`);
    if (!declaration.arguments || !declaration.returns) throw new Error(`function "${name}": transship.toml must give its arguments and result`);
    this.name = name;
    this.kind = kind;
    this.takesColumns = declaration.batch === "columns";
    this.arguments = declaration.arguments;
    this.returns = declaration.returns;
    const types = this.arguments.map((argument) => argument.type);
    this.callTypes = kind === "aggregate" ? [INT8, ...types, BYTEA] : types;
    this.replyTypes = kind === "aggregate" ? [this.returns, BYTEA] : kind === "table" ? [INT4, this.returns] : [this.returns];
    this.readers = this.callTypes.map(reader);
    this.write = writer(this.returns);
  }

  private readonly takesColumns: boolean;

  /** The handler's values of a request's columns. */
  read(columns: any, rows: any): Columns {
    const refuse = (fact: string): never => {
      throw new CallError("protocol_violation", fact);
    };
    if (!Number.isSafeInteger(rows) || rows < 0) refuse("the request has no number of rows");
    if (!Array.isArray(columns) || columns.length !== this.callTypes.length) refuse(`${this.name} takes ${this.callTypes.length} columns`);
    return this.callTypes.map((type, position) => {
      const column = columns[position];
      if (!Array.isArray(column) || column.length !== rows) refuse("columns and rows do not match");
      try {
        return column.map(this.readers[position]);
      } catch (error) {
        if (!(error instanceof Misfit)) throw error;
        return refuse(`column ${position + 1} holds ${error.message}, which is not of type ${type.text}`);
      }
    });
  }

  /** The reply's columns. */
  async answer(columns: Columns, rows: number, isCancelled: IsCancelled): Promise<Columns> {
    if (this.kind === "table") return this.answerTable(columns, rows, isCancelled);
    if (!this.takesColumns) return [await eachRow(rows, isCancelled, async (row) => this.result(await this.target(...columns.map((column) => column[row])), row))];
    let results: any;
    try {
      results = await (columns.length ? this.target(...columns) : this.target(rows));
    } catch (error) {
      throw fromException(error);
    }
    // Typed arrays are columns as well.
    results = results?.length === undefined ? [] : Array.from(results);
    if (results.length !== rows) throw new CallError("bad_result", `It returned ${results.length} values for ${rows} rows.`);
    return [results.map((value: any, row: number) => this.result(value, row))];
  }

  private async answerTable(columns: Columns, rows: number, isCancelled: IsCancelled): Promise<Columns> {
    const [numbers, results]: Columns = [[], []];
    await eachRow(rows, isCancelled, async (row) => {
      for await (const value of this.target(...columns.map((column) => column[row])) ?? []) {
        numbers.push(row);
        results.push(this.result(value, row));
        if (results.length % ROWS_BETWEEN_CHECKS === 0 && isCancelled()) throw new Cancelled();
      }
    });
    return [numbers, results];
  }

  /** The JSON value of a result. */
  result(value: any, row?: number): any {
    try {
      return this.write(value);
    } catch (error) {
      if (!(error instanceof Misfit)) throw error;
      throw new CallError("bad_result", `It returned ${error.message}; the declared result is ${this.returns.text}.`, row);
    }
  }
}

/** The groups of one exchange of an aggregate function. Instances travel as the JSON text of their fields. */
export class Groups {
  private readonly instances = new Map<bigint, Aggregate>();
  used = Date.now();

  constructor(readonly function_: UserFunction) {}

  async answer(columns: Columns, rows: number, step: any, isCancelled: IsCancelled): Promise<Columns> {
    const [groups, states] = [columns[0], columns[columns.length - 1]];
    const each = (work: (row: number) => Promise<any>) => eachRow(rows, isCancelled, work);
    switch (step) {
      case "accumulate":
        await each(async (row) => this.instance(groups[row]).step(...columns.slice(1, -1).map((column) => column[row])));
        return [[], []];
      case "merge":
        await each(async (row) => {
          const instance = this.instance(groups[row]);
          if (!instance.merge) throw new CallError("bad_result", `Class ${this.function_.name} has no method merge, which parallel queries need.`);
          const other = Object.assign(new this.function_.target(), JSON.parse(states[row].toString(), revive));
          return instance.merge(other);
        });
        return [[], []];
      case "finish": {
        const results = await each(async (row) => this.function_.result(await this.instance(groups[row]).finish(), row));
        return [results, results.map(() => null)];
      }
      case "state": {
        const states = await each(async (row) => Buffer.from(JSON.stringify(this.instance(groups[row]), replace)).toString("base64"));
        return [states.map(() => null), states];
      }
      case "forget":
        groups.forEach((group) => this.instances.delete(group));
        return [[], []];
      default:
        throw new CallError("protocol_violation", `there is no step ${JSON.stringify(step)}`);
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

/** Runs work for each row, in order; an exception names its row. */
async function eachRow(rows: number, isCancelled: IsCancelled, work: (row: number) => Promise<any>): Promise<any[]> {
  const results = new Array(rows);
  for (let row = 0; row < rows; row++) {
    try {
      results[row] = await work(row);
    } catch (error) {
      throw fromException(error, row);
    }
    if (row % ROWS_BETWEEN_CHECKS === 0) {
      // Lets the event loop notice that the client has gone, and others be answered.
      await new Promise(setImmediate);
      if (isCancelled()) throw new Cancelled();
    }
  }
  return results;
}

function fromException(error: any, row?: number): Error {
  if (error instanceof CallError || error instanceof Cancelled) return error;
  if (!(error instanceof Error)) return new CallError("user_code", String(error), row, String(error));
  return new CallError("user_code", `${error.name}: ${error.message}`, row, error.stack ?? String(error));
}

/** The image's functions by name. Throws what is wrong with them. */
export function load(root: string): Map<string, UserFunction> {
  const { handler, functions } = JSON.parse(readFileSync(`${root}/functions.json`, "utf8"));
  const compiled = handler.replace(/\.[cm]?ts$/, ".js");
  const module_ = require(`${root}/dist/function/${compiled}`);
  return new Map(functions.map((declaration: Declaration) => [declaration.name, new UserFunction(declaration, module_[declaration.name])]));
}
