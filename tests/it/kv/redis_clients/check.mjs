// node-redis and ioredis with their defaults, against a store. Ends with 0 if all replies are right.
// Arguments: the name of the library, and the address and port of the store.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const [name, host, port] = process.argv.slice(2);
// The libraries are where NODE_PATH says, which `import` does not read.
const load = createRequire(path.join(process.env.NODE_PATH, "redis_clients.cjs"));

async function nodeRedis() {
  const { createClient } = load("redis");
  const client = createClient({ url: `redis://${host}:${port}`, name: "me" });
  client.on("error", (error) => {
    throw error;
  });
  await client.connect();
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.set("node", "1"), "OK");
  assert.equal(await client.get("node"), "1");
  assert.equal(await client.get("none"), null);
  assert.equal(await client.set("node", "2", { condition: "NX" }), null);
  assert.equal(await client.exists(["node", "none"]), 1);
  const numbers = Array.from({ length: 500 }, (_, n) => String(n));
  await Promise.all(numbers.map((n) => client.set(`node${n}`, n)));
  assert.deepEqual(await Promise.all(numbers.map((n) => client.get(`node${n}`))), numbers);
  assert.equal(await client.del(["node", ...numbers.map((n) => `node${n}`)]), 501);
  assert.equal(await client.clientGetName(), "me");
  assert.equal((await client.configGet("databases")).databases, "1");
  await assert.rejects(client.set("node", "1", { expiration: { type: "EX", value: 10 } }), /keys never expire/);
  await assert.rejects(client.multi().set("node", "1").exec());
  assert.equal(await client.get("node"), null);
  await client.close();
}

async function ioredis() {
  const { Redis } = load("ioredis");
  const client = new Redis(Number(port), host);
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.set("io", "1"), "OK");
  assert.equal(await client.get("io"), "1");
  assert.equal(await client.get("none"), null);
  assert.equal(await client.set("io", "2", "NX"), null);
  assert.equal(await client.exists("io", "none"), 1);
  const pipeline = client.pipeline();
  for (let n = 0; n < 500; n++) pipeline.set(`io${n}`, n).get(`io${n}`);
  const expected = Array.from({ length: 1000 }, (_, at) => [null, at % 2 ? String((at - 1) / 2) : "OK"]);
  assert.deepEqual(await pipeline.exec(), expected);
  assert.equal(await client.del("io", "io0", "none"), 2);
  await assert.rejects(client.set("io", "1", "EX", 10), /keys never expire/);
  await assert.rejects(client.multi().set("io", "1").exec(), /EXECABORT|MULTI/);
  assert.equal(await client.get("io"), null);
  assert.equal(await client.quit(), "OK");
}

await { redis: nodeRedis, ioredis }[name]();
