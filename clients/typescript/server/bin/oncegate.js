#!/usr/bin/env node
"use strict";
/** Runs the program that npm has installed for this platform, with the same arguments, signals and exit status. */

const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `@oncegate/server-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/oncegate`);
} catch {
  console.error(
    `oncegate: ${name} is not installed. npm installs it beside @oncegate/server, unless optional dependencies are left out ` +
      "(--omit=optional), or the node_modules come from another platform. For platforms without a package: " +
      "https://github.com/oncegate/oncegate#readme",
  );
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`oncegate: ${program} does not start: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + (os.constants.signals[signal] ?? 0)));
