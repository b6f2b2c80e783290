// Starts the server: main.js [serve | describe], the forms of docs/protocol.md §6 and §7 over HTTP.

import { readFileSync, rmSync } from "node:fs";
import { IncomingMessage, Server, ServerResponse, createServer } from "node:http";
import { Socket } from "node:net";
import { COLUMNS, ColumnsRequest } from "./columns";
import { keepDigits } from "./exact_numbers";
import { CallError, Cancelled, Groups, UserFunction, load } from "./functions";

const MAX_BODY_BYTES = 2 ** 30;
const EXCHANGE_IDLE_MS = 600_000;
const FUNCTIONS = "/v1/functions/";
const EXCHANGES = "/v1/exchanges/";
const STATUS: Record<string, number> = { function_not_found: 404, protocol_violation: 400 };

const transports = ["json", "socket", ...(process.env.TRANSSHIP_SEGMENT_DIR ? ["shm"] : [])];
const root = process.env.TRANSSHIP_ROOT ?? "/opt/transship";
// What the handler prints is a log, not an answer.
console.log = console.info = console.debug = console.error;

function serve(functions: Map<string, UserFunction>): void {
  const exchanges = new Map<string, Groups>();

  function findFunction(path: string): UserFunction {
    const name = decodeURIComponent(path.startsWith(FUNCTIONS) ? path.slice(FUNCTIONS.length) : path);
    const found = functions.get(name);
    if (!found) throw new CallError("function_not_found", `there is no function "${name}"`);
    return found;
  }

  function findGroups(request: any, found: UserFunction): Groups {
    const now = Date.now();
    for (const [name, groups] of exchanges) if (now - groups.used > EXCHANGE_IDLE_MS) exchanges.delete(name);
    const name = request.exchange;
    if (request.batch === 0 && typeof name === "string") exchanges.set(name, new Groups(found));
    const groups = exchanges.get(name);
    if (groups?.function_ !== found) throw new CallError("protocol_violation", `there is no exchange ${JSON.stringify(name)} of ${found.name}`);
    groups.used = now;
    return groups;
  }

  async function answer(message: IncomingMessage, read: Promise<Buffer>, isCancelled: () => boolean): Promise<object | Buffer> {
    const path = message.url ?? "";
    if (message.method === "GET" && path === "/v1") {
      return { protocol: 1, server: "transship-node/0.2.0", functions: [...functions.keys()], transports, keep_alive: true };
    }
    if (message.method === "DELETE" && path.startsWith(EXCHANGES)) {
      exchanges.delete(decodeURIComponent(path.slice(EXCHANGES.length)));
      return {};
    }
    if (message.method === "GET") {
      const found = findFunction(path);
      const described = found.arguments.map(({ name, type }) => ({ name, type: type.text }));
      return { name: found.name, kind: found.kind, arguments: described, returns: found.returns.text };
    }
    const body = await read;
    const found = findFunction(path);
    const inMemory = message.headers["content-type"] === COLUMNS ? new ColumnsRequest(body) : null;
    const request = inMemory?.header ?? parse(body);
    const given = inMemory?.columns(found.callTypes) ?? keepDigits(found.callTypes, request.columns, body);
    const columns = found.read(given, request.rows);
    const start = process.hrtime.bigint();
    const reply = found.kind === "aggregate"
      ? await findGroups(request, found).answer(columns, request.rows, request.step, isCancelled)
      : await found.answer(columns, request.rows, isCancelled);
    const micros = Number((process.hrtime.bigint() - start) / 1000n);
    if (inMemory) return inMemory.reply(found.replyTypes, reply, micros);
    return { batch: request.batch ?? 0, rows: reply[0].length, micros, columns: reply };
  }

  async function handle(message: IncomingMessage, response: ServerResponse, read: Promise<Buffer>): Promise<void> {
    let [status, reply]: [number, object | Buffer] = [200, {}];
    try {
      reply = await answer(message, read, () => message.socket.destroyed);
    } catch (error) {
      if (error instanceof Cancelled) return;
      const failure = error instanceof CallError ? error : new CallError("protocol_violation", String(error));
      [status, reply] = [STATUS[failure.kind] ?? 500, { error: failure.toWire() }];
    }
    const payload = reply instanceof Buffer ? reply : Buffer.from(JSON.stringify(reply));
    const contentType = reply instanceof Buffer ? COLUMNS : "application/json";
    response.writeHead(status, { "Content-Type": contentType, "Content-Length": payload.length });
    response.end(payload, () => isStopping && setImmediate(closeIdle));
  }

  // Requests of one connection run one after the other, also if they are sent at once.
  const last = new WeakMap<Socket, Promise<void>>();
  function enqueue(message: IncomingMessage, response: ServerResponse): void {
    // Read at once: behind a body that nobody reads, the end of the connection would not be seen.
    const read = readBody(message);
    // Whoever waits for it sees the error.
    read.catch(() => {});
    const before = last.get(message.socket);
    last.set(message.socket, before ? before.then(() => handle(message, response, read)) : handle(message, response, read));
  }

  const servers: Server[] = [];
  const listen = (place: string | number) => {
    const server = createServer({ keepAliveTimeout: 600_000, requestTimeout: 0 }, enqueue);
    servers.push(typeof place === "number" ? server.listen(place, "0.0.0.0") : server.listen(place));
  };
  // The engine that connects is another user than this one; the directory around the socket decides who gets here.
  process.umask(0);
  const directory = process.env.TRANSSHIP_SOCKET_DIR;
  if (directory) {
    rmSync(`${directory}/http.sock`, { force: true });
    listen(`${directory}/http.sock`);
  }
  if (process.env.TRANSSHIP_HTTP_PORT) listen(Number(process.env.TRANSSHIP_HTTP_PORT));
  if (!servers.length) throw new Error("set TRANSSHIP_SOCKET_DIR or TRANSSHIP_HTTP_PORT");
  // What is running is finished; connections without a request are closed, now and when their last one is answered.
  let isStopping = false;
  const closeIdle = () => servers.forEach((server) => server.closeIdleConnections());
  const stop = () => {
    isStopping = true;
    servers.forEach((server) => server.close());
    closeIdle();
  };
  process.on("SIGTERM", stop);
  process.on("SIGINT", stop);
  console.error(`transship: ready, ${functions.size} functions`);
}

function describe(functions: Map<string, UserFunction>): void {
  const manifest = JSON.parse(readFileSync(`${root}/manifest.json`, "utf8"));
  for (const entry of manifest.functions) {
    const found = functions.get(entry.name)!;
    if (found.kind === "aggregate") entry.merges = typeof found.target.prototype?.merge === "function";
  }
  process.stdout.write(JSON.stringify(manifest));
}

async function readBody(message: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of message) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) {
      throw new CallError("protocol_violation", "a request has at most 1 GiB");
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function parse(body: Buffer): any {
  try {
    const request = JSON.parse(body.toString());
    if (request && typeof request === "object" && !Array.isArray(request)) return request;
  } catch (error) {
    throw new CallError("protocol_violation", `the request cannot be read: ${error}`);
  }
  throw new CallError("protocol_violation", "the request cannot be read: it is not an object");
}

try {
  const functions = load(root);
  if (process.argv[2] === "describe") describe(functions);
  else serve(functions);
} catch (error) {
  console.error(`transship: ${error}`);
  process.exit(1);
}
