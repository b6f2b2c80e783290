// The functions of the conformance suite, as docs/conformance.md describes them.

import { table } from "transship";

const types =
  "bool int2 int4 int8 float4 float8 text bytea date timestamp timestamptz numeric uuid json time timetz interval inet " +
  "cidr macaddr datetime2 array range composite decimals";
for (const name of types.split(" ")) exports[`echo_${name}`] = (x: unknown) => x;

export function constant(): number {
  return 7;
}

export function add(a: bigint | null, b: bigint | null): bigint | null {
  return a === null || b === null ? null : a + b;
}

export function fail_at(x: bigint): bigint {
  if (x === 13n) throw new RangeError("13 is bad");
  return x;
}

export async function wait(seconds: number): Promise<number> {
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  return seconds;
}

export function* repeat(n: number | null): Iterable<number> {
  for (let i = 1; i <= (n ?? 0); i++) yield i;
}

export function table_lookup(keys: (bigint | null)[]): (string | null)[] {
  return table("numbers").lookup(keys).column("name");
}

export async function* running_sum(rows: AsyncIterable<[bigint | null]>): AsyncIterable<bigint> {
  let sum = 0n;
  for await (const [x] of rows) yield (sum += x ?? 0n);
}

export class total {
  sum = 0n;

  step(x: bigint | null): void {
    this.sum += x ?? 0n;
  }

  merge(other: total): void {
    this.sum += other.sum;
  }

  finish(): bigint {
    return this.sum;
  }
}
