/** MD5 of Node.js, or in FIPS mode, which refuses it, by RFC 1321: here it names, and secures nothing. */

import { createHash } from "node:crypto";

export function md5(message: Uint8Array): string {
  try {
    return createHash("md5").update(message).digest("hex");
  } catch {
    return md5InFips(message);
  }
}

type Four = [number, number, number, number];

/** Exported for its test. */
export function md5InFips(message: Uint8Array): string {
  const turns = [7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21];
  const sines = Array.from({ length: 64 }, (_, step) => Math.floor(Math.abs(Math.sin(step + 1)) * 2 ** 32));
  const padded = new Uint8Array((((message.length + 8) >> 6) + 1) * 64);
  padded.set(message);
  padded[message.length] = 0x80;
  const words = new DataView(padded.buffer);
  words.setUint32(padded.length - 8, message.length << 3, true);
  words.setUint32(padded.length - 4, Math.floor(message.length / 2 ** 29), true);
  let state = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];
  for (let block = 0; block < padded.length; block += 64) {
    let [a, b, c, d] = state as Four;
    for (let step = 0; step < 64; step++) {
      const round = step >> 4;
      const mixed = [(b & c) | (~b & d), (d & b) | (~d & c), b ^ c ^ d, c ^ (b | ~d)][round] as number;
      const word = ([step, 5 * step + 1, 3 * step + 5, 7 * step][round] as number) % 16;
      const sum = (a + mixed + (sines[step] as number) + words.getUint32(block + word * 4, true)) | 0;
      const turn = turns[round * 4 + (step % 4)] as number;
      [a, d, c, b] = [d, c, b, (b + ((sum << turn) | (sum >>> (32 - turn)))) | 0];
    }
    state = [a, b, c, d].map((word, at) => ((state[at] as number) + word) | 0);
  }
  const digest = new DataView(new ArrayBuffer(16));
  for (const [at, word] of state.entries()) digest.setUint32(at * 4, word, true);
  return Array.from(new Uint8Array(digest.buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
