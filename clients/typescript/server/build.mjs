/**
 * Packs `@oncegate/server`, and a package for each platform whose binary is given.
 *
 * Usage: node build.mjs FOLDER VERSION PLATFORM=BINARY...     (PLATFORM as Node.js names it: linux-x64, darwin-arm64, …)
 */

import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";

const [folder, version, ...binaries] = process.argv.slice(2);
if (!folder || !/^\d+\.\d+\.\d+/.test(version ?? "") || binaries.length === 0) {
  console.error("usage: node build.mjs FOLDER VERSION PLATFORM=BINARY...");
  process.exit(2);
}
const own = import.meta.dirname;
const base = JSON.parse(readFileSync(path.join(own, "package.json"), "utf8"));
const known = Object.keys(base.optionalDependencies).map((name) => name.replace("@oncegate/server-", ""));
const licence = path.join(own, "..", "LICENSE");
rmSync(folder, { recursive: true, force: true });

for (const given of binaries) {
  const at = given.indexOf("=");
  const [platform, binary] = [given.slice(0, at), given.slice(at + 1)];
  if (!known.includes(platform)) throw new Error(`${given}: the platform is one of ${known.join(", ")}`);
  const [os, cpu] = platform.split("-");
  const { license, homepage, bugs, repository, engines, publishConfig } = base;
  const manifest = {
    name: `@oncegate/server-${platform}`,
    version,
    description: `The gateway of Oncegate for ${os} on ${cpu}. Install @oncegate/server.`,
    ...{ license, homepage, bugs, repository, engines, publishConfig },
    os: [os],
    cpu: [cpu],
    files: ["bin"],
    preferUnplugged: true,
  };
  const target = write(platform, manifest);
  copyFileSync(binary, path.join(target, "bin", "oncegate"));
  chmodSync(path.join(target, "bin", "oncegate"), 0o755);
  writeFileSync(path.join(target, "README.md"), `# ${manifest.name}\n\n${manifest.description}\n`);
  pack(target);
}

const optionalDependencies = Object.fromEntries(Object.keys(base.optionalDependencies).map((name) => [name, version]));
const target = write("server", { ...base, version, optionalDependencies });
cpSync(path.join(own, "bin"), path.join(target, "bin"), { recursive: true });
copyFileSync(path.join(own, "README.md"), path.join(target, "README.md"));
pack(target);

function write(name, manifest) {
  const target = path.join(folder, name);
  mkdirSync(path.join(target, "bin"), { recursive: true });
  copyFileSync(licence, path.join(target, "LICENSE"));
  writeFileSync(path.join(target, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  return target;
}

function pack(target) {
  execFileSync("npm", ["pack", "--silent", "--pack-destination", path.resolve(folder)], { cwd: target, stdio: "inherit" });
}
