/** One row at a time: int8 arguments are bigint, NULL is null. */
export function add_one(x: bigint | null): bigint | null {
  return x === null ? null : x + 1n;
}

/** A whole batch at a time (`batch = "columns"` in transship.toml): one array per argument, one result per row. */
export function hypotenuse(a: number[], b: number[]): number[] {
  return a.map((side, row) => Math.hypot(side, b[row]));
}

/** A table function: any number of results for each row. */
export function* words(text: string): Iterable<string> {
  yield* text.split(/\s+/).filter(Boolean);
}

/** An aggregate function: an instance per group of rows; merge lets queries run in parallel. */
export class longest {
  text: string | null = null;

  step(text: string | null): void {
    if (text !== null && text.length > (this.text?.length ?? -1)) this.text = text;
  }

  merge(other: longest): void {
    this.step(other.text);
  }

  finish(): string | null {
    return this.text;
  }
}
