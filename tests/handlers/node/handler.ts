// Handlers that misbehave; judge.py says what must come of each.

let started = 0;

export const right = (x: bigint): bigint => x;

export const wrong_type = (x: bigint): any => (x === 2n ? "text" : x);

/** JavaScript writes null for it. */
export const no_json = (x: bigint): any => [null, { value: x === 2n ? NaN : 1 }];

export function throws(x: bigint): bigint {
  if (x === 2n) throw Object.create(null);
  void Promise.reject(new Error("unseen"));
  return x;
}

export async function waits(x: bigint, signal: AbortSignal): Promise<bigint> {
  started++;
  if (x === 100n) console.error("the call of 100 has begun");
  await new Promise((resolve) => setTimeout(resolve, x === 3n ? 600 : 200));
  if (x === 3n || x === 5n) throw new Error(`bad ${x}`);
  return x;
}

export const count = (): bigint => BigInt(started);

export function loops(x: bigint): bigint {
  console.error("the loop has begun");
  for (;;) started += 0;
}

export const exits = (x: bigint): bigint => process.exit(3);
