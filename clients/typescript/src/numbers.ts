/** Numbers as text, so that no digit is lost. */

/** 0.d1d2d3… × 10^point, without leading and trailing zeros; zero has no digits. */
export interface NumberText {
  negative: boolean;
  digits: string;
  point: number;
}

/** Reads a number in JSON's notation. With `lenient`, digits before or after the point may be missing, as in decimals. */
export function parseNumber(literal: string, lenient: boolean): NumberText | null {
  const form = lenient ? /^(-?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?$/ : /^(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/;
  const parts = form.exec(literal);
  if (!parts) return null;
  const [, sign, whole = "", fraction = "", exponent = "0"] = parts;
  if (whole + fraction === "") return null;
  const all = whole + fraction;
  const significant = all.replace(/^0+/, "");
  return {
    negative: sign === "-",
    digits: significant.replace(/0+$/, ""),
    point: whole.length + Number(exponent) - (all.length - significant.length),
  };
}

/** In plain notation. The exponent must be small. */
export function plain({ negative, digits, point }: NumberText): string {
  if (digits === "") return "0";
  let text: string;
  if (point <= 0) text = `0.${"0".repeat(-point)}${digits}`;
  else if (point >= digits.length) text = digits + "0".repeat(point - digits.length);
  else text = `${digits.slice(0, point)}.${digits.slice(point)}`;
  return negative ? `-${text}` : text;
}

/** True from 2^53 on and below 10^21, by the exact value. */
export function isBeyond({ digits, point }: NumberText): boolean {
  if (point > 21 || point < 16) return false;
  return point > 16 || digits.padEnd(16, "0").slice(0, 16) >= String(2 ** 53);
}
