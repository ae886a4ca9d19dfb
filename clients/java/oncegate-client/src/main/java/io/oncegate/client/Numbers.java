package io.oncegate.client;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;

/**
 * Numbers of JSON text in canonical form, as ECMAScript writes the double. What a double would lose
 * is refused.
 */
final class Numbers {
    private static final BigDecimal TWO_TO_53 = BigDecimal.valueOf(1L << 53);
    private static final BigDecimal TEN_TO_21 = new BigDecimal("1e21");

    private Numbers() {}

    static String canonical(BigDecimal decimal, String path) {
        double value = decimal.doubleValue();
        if (!Double.isFinite(value)) {
            throw new NotCanonical(
                    "not_finite", path, "a number is beyond what a double holds; send it as text");
        }
        // By the value and by its double: each may round up to a bound that the other keeps.
        if (isBeyond(decimal) || isBeyond(new BigDecimal(value))) {
            throw new NotCanonical(
                    "integer_too_large",
                    path,
                    "a number of 2^53 or more loses digits in some languages; send it as text");
        }
        if (decimal.stripTrailingZeros().precision() > 17) {
            throw new NotCanonical(
                    "too_long",
                    path,
                    "a number has more than 17 significant digits; send it as text");
        }
        if (value == 0) {
            if (decimal.signum() != 0) {
                throw new NotCanonical(
                        "not_finite",
                        path,
                        "a number is so small that it would become 0; send it as text");
            }
            return "0";
        }
        BigDecimal shortest = shortest(Math.abs(value));
        // 0.d1d2d3... * 10^point
        String digits = shortest.unscaledValue().toString();
        int point = digits.length() - shortest.scale();
        String sign = value < 0 ? "-" : "";
        if (digits.length() <= point && point <= 21) {
            return sign + digits + "0".repeat(point - digits.length());
        }
        if (0 < point && point <= 21) {
            return sign + digits.substring(0, point) + "." + digits.substring(point);
        }
        if (-6 < point && point <= 0) {
            return sign + "0." + "0".repeat(-point) + digits;
        }
        String fraction = digits.length() > 1 ? "." + digits.substring(1) : "";
        return sign
                + digits.charAt(0)
                + fraction
                + "e"
                + (point > 0 ? "+" : "-")
                + Math.abs(point - 1);
    }

    private static boolean isBeyond(BigDecimal number) {
        return number.abs().compareTo(TWO_TO_53) >= 0 && number.abs().compareTo(TEN_TO_21) < 0;
    }

    /**
     * Returns the fewest digits that are this double, and of those the nearest; the even ones if
     * two are equally near. {@code Double.toString} has too many before JDK 19.
     */
    private static BigDecimal shortest(double value) {
        var exact = new BigDecimal(value);
        for (int digits = 1; ; digits++) {
            BigDecimal below = exact.round(new MathContext(digits, RoundingMode.DOWN));
            BigDecimal above = exact.round(new MathContext(digits, RoundingMode.UP));
            boolean belowIs = below.doubleValue() == value;
            boolean aboveIs = above.doubleValue() == value;
            if (belowIs || aboveIs) {
                int nearer = exact.subtract(below).compareTo(above.subtract(exact));
                boolean belowIsEven = !below.unscaledValue().testBit(0);
                boolean belowWins = nearer < 0 || (nearer == 0 && belowIsEven);
                return (belowIs && (belowWins || !aboveIs) ? below : above).stripTrailingZeros();
            }
        }
    }
}
