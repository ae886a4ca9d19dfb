/** The test application of the middleware's vectors: `main.mjs --app ROW --port PORT`. */

import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const { values } = parseArgs({ options: { app: { type: "string" }, port: { type: "string", default: "0" } } });
const require = createRequire(import.meta.url);
const [row, form] = (values.app ?? "").split(":");
// The package itself, by the names that its users have: as ES modules, or with `ROW:cjs` as CommonJS.
const load = form === "cjs" ? async (name) => require(name) : (name) => import(name);
const plain = async (name) => (await import(name)).default;

const rows = {
  express: async () => (await import("./express.mjs")).listen({ ...common, express: await plain("express") }),
  express4: async () => (await import("./express.mjs")).listen({ ...common, express: await plain("express4") }),
  koa: async () => (await import("./koa.mjs")).listen(common),
  fastify: async () =>
    (await import("./fastify.mjs")).listen({
      ...common,
      fastify: await plain("fastify"),
      multipart: await plain("@fastify/multipart"),
      compress: await plain("@fastify/compress"),
    }),
  fastify4: async () =>
    (await import("./fastify.mjs")).listen({
      ...common,
      fastify: await plain("fastify4"),
      multipart: await plain("fastify4-multipart"),
      compress: await plain("fastify4-compress"),
    }),
  "nest-express": async () => (await import("./nest.mjs")).listen({ ...common, platform: "express" }),
  "nest-fastify": async () => (await import("./nest.mjs")).listen({ ...common, platform: "fastify" }),
};
const common = { load, port: Number(values.port) };
if (!rows[row]) throw new Error(`there is no application ${row}; there are ${Object.keys(rows).join(", ")}`);
const { address, lacks } = await rows[row]();
if (lacks.length > 0) console.log(`lacks ${lacks.join(" ")}`);
console.log(`listening 127.0.0.1:${address.port}`);
