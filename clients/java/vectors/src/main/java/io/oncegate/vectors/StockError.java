package io.oncegate.vectors;

/** The error that the application declares harmless. */
final class StockError extends RuntimeException {
    private static final long serialVersionUID = 1;

    StockError() {
        super("out of stock");
    }
}
