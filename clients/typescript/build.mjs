/** Builds `dist`: CommonJS with its types, and for `import` one ES module for each entry that passes the same objects on. */

import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const folder = import.meta.dirname;
const at = (...names) => path.join(folder, ...names);
const { exports: entries } = JSON.parse(readFileSync(at("package.json"), "utf8"));
const compiler = path.join(path.dirname(createRequire(import.meta.url).resolve("typescript/package.json")), "bin", "tsc");
const tsc = (...options) => execFileSync(process.execPath, [compiler, ...options], { stdio: "inherit" });

rmSync(at("dist"), { recursive: true, force: true });
tsc("-p", at("tsconfig.json"));
copyFileSync(at("src", "package.json"), at("dist", "package.json"));
for (const { require: entry } of Object.values(entries).filter((each) => each.require)) {
  const file = at(entry.default);
  if (!existsSync(file)) throw new Error(`${entry.default} is an entry of package.json, and was not built`);
  // One copy of each class for `import` and `require`: `instanceof` holds between both.
  const text = `export * from "./${path.basename(file)}";\n`;
  writeFileSync(file.replace(/\.js$/, ".mjs"), text);
  writeFileSync(file.replace(/\.js$/, ".d.mts"), text);
}
// The entry for browsers is a separate ES module.
tsc("-p", at("tsconfig.browser.json"));
renameSync(at("dist", "browser", "fetch.js"), at("dist", "fetch.mjs"));
rmSync(at("dist", "browser"), { recursive: true });
