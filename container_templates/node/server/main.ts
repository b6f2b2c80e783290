// Starts the server: main.js [serve | describe]. The core speaks the protocol; this thread pulls calls from it.

import { Call } from "./call";
import { Batch, Step, core } from "./core";
import { Groups, UserFunction, load } from "./functions";

/** Batches that are begun before the event loop has a turn. */
const BATCHES_PER_TURN = 8;

const root = process.env.TRANSSHIP_ROOT ?? "/opt/transship";
// What the handler prints is a log, not an answer.
const print = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr) as typeof process.stdout.write;
console.log = console.info = console.debug = console.error;

function serve(functions: UserFunction[]): void {
  const exchanges = new Map<number, Groups>();
  /** What goes on when a map function's stream has more. */
  const streams = new Map<number, () => void>();

  async function answer(call: Call): Promise<void> {
    const { batch } = call;
    try {
      const found = functions[batch.function];
      if (batch.step === Step.Map) {
        const resumed = () => new Promise<void>((resolve) => streams.set(batch.exchange, resolve));
        const [rows, reply] = await found.answerStream(call, resumed);
        call.end(() => core.answer(batch.work, rows, reply));
        return;
      }
      const columns = found.read(batch);
      if (batch.step === Step.Call) {
        const [rows, reply] = await found.answer(call, columns);
        call.end(() => core.answer(batch.work, rows, reply));
        return;
      }
      let groups = exchanges.get(batch.exchange);
      if (!groups) exchanges.set(batch.exchange, (groups = new Groups(found)));
      const [rows, reply] = await groups.answer(call, columns);
      call.end(() => core.answer(batch.work, rows, reply));
    } catch (error) {
      call.fail(error);
    } finally {
      streams.delete(batch.exchange);
    }
  }

  function begin(batch: Batch): void {
    if (batch.step === Step.End) {
      exchanges.delete(batch.exchange);
      core.answer(batch.work, 0, []);
      return;
    }
    if (batch.step === Step.Resume) {
      streams.get(batch.exchange)?.();
      core.answer(batch.work, 0, []);
      return;
    }
    const call = new Call(batch);
    call.begin(() => void answer(call));
    call.watch();
  }

  // A promise that fails unseen belongs to no call. Other uncaught exceptions end the process, as they do in Node.
  process.on("unhandledRejection", (reason) => console.error("transship: unhandled rejection:", reason));
  core.start(() => {
    for (let i = 0; i < BATCHES_PER_TURN; i++) {
      const batch = core.next();
      if (batch === null) return;
      if (batch === undefined) {
        core.stopWaiting();
        process.exit(0);
      }
      begin(batch);
    }
  });
}

try {
  core.create(JSON.stringify({ server: "transship-node/0.2.0", columns: "plain", tables: true, one_thread: true }));
  const functions = load(root);
  if (process.argv[2] === "describe") {
    const merging = functions.flatMap((found, number) => (found.merges ? [number] : []));
    print(core.describe(merging), () => process.exit(0));
  } else {
    serve(functions);
  }
} catch (error) {
  console.error(`transship: ${error}`);
  process.exit(1);
}
