// A batch under way: its errors, its end, and what it leaves to others meanwhile.

import { setMaxListeners } from "node:events";
import { Batch, core } from "./core";
import { Tables } from "./tables";

/** Longest stretch for which a batch of short calls keeps others waiting. */
const SLICE_MS = 5;
/** How often calls that wait look whether their clients have gone. */
const LOOK_MS = 20;
/** How long a reply waits before it looks again whether the client has kept up. */
const BEHIND_MS = 1;
/** Characters of an error's text. */
const MOST_TEXT = 64 << 10;

/** A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch. */
export class CallError extends Error {
  constructor(readonly kind: string, message: string, readonly row?: number, readonly traceback?: string) {
    super(message);
  }
}

/** The client has gone; nobody waits for the rest. */
export class Cancelled extends Error {}

/** The text of anything that was thrown. */
export function textOf(value: any): string {
  try {
    return String(value);
  } catch {
    return Object.prototype.toString.call(value);
  }
}

export function fromException(error: any, row?: number): Error {
  if (error instanceof CallError || error instanceof Cancelled) return error;
  let [text, traceback] = [textOf(error), undefined as string | undefined];
  try {
    if (error instanceof Error) [text, traceback] = [`${error.name}: ${error.message}`, error.stack];
  } catch {
    // An error whose message cannot be read.
  }
  return new CallError("user_code", text.slice(0, MOST_TEXT), row, textOf(traceback ?? text).slice(0, MOST_TEXT));
}

export function isThenable(value: any): value is PromiseLike<any> {
  return value !== null && (typeof value === "object" || typeof value === "function") && typeof value.then === "function";
}

/** A batch that has been pulled and not been answered. */
export class Call {
  private static readonly waiting = new Set<Call>();
  private static timer: NodeJS.Timeout | undefined;

  /** Whether it was answered, or nobody waits for the answer any more. */
  isOver = false;
  private controller: AbortController | undefined;
  private sliceStart = performance.now();
  private readonly tables: Tables | undefined;

  constructor(readonly batch: Batch) {
    this.tables = Tables.of(batch.work);
  }

  /** Begins to answer. */
  begin(answer: () => void): void {
    if (this.tables) this.tables.run(answer);
    else answer();
  }

  /** What a handler that takes it may listen to. */
  get signal(): AbortSignal {
    if (!this.controller) {
      this.controller = new AbortController();
      // Every row of a batch may listen.
      setMaxListeners(0, this.controller.signal);
    }
    return this.controller.signal;
  }

  /** Throws if the client has gone. Gives a promise to wait for if others should have a turn. */
  look(): Promise<void> | undefined {
    if (this.isOver || core.isCancelled(this.batch.work)) throw new Cancelled();
    if (performance.now() - this.sliceStart < SLICE_MS) return undefined;
    return new Promise((resolve) => setImmediate(() => {
      this.sliceStart = performance.now();
      resolve();
    }));
  }

  /** Waits until the client has taken what was given. */
  async keepUp(): Promise<void> {
    while (!this.isOver && core.isBehind(this.batch.work)) await new Promise((resolve) => setTimeout(resolve, BEHIND_MS));
    if (this.isOver) throw new Cancelled();
  }

  /** Ends the call, once, in one way. */
  end(how: () => void): void {
    if (this.isOver) return;
    this.isOver = true;
    Call.waiting.delete(this);
    this.tables?.close();
    how();
  }

  fail(error: any): void {
    const { kind, message, traceback, row } = fromException(error) as CallError;
    this.end(() => core.fail(this.batch.work, kind ?? "user_code", message || "cancelled", traceback ?? null, row ?? -1));
    // Calls that still run are of no use any more. After a reply there is none.
    this.controller?.abort();
  }

  /** Ends the call as soon as its client has gone, while its handler waits for something. */
  watch(): void {
    if (this.isOver) return;
    Call.waiting.add(this);
    Call.timer ??= setTimeout(Call.lookAtWaiting, LOOK_MS);
  }

  private static readonly lookAtWaiting = () => {
    Call.timer = undefined;
    for (const call of Call.waiting) if (core.isCancelled(call.batch.work)) call.fail(new Cancelled());
    if (Call.waiting.size) Call.timer = setTimeout(Call.lookAtWaiting, LOOK_MS);
  };
}
