package io.oncegate.client;

import java.security.SecureRandom;
import java.util.HexFormat;

/** The parts that all calls of a client share. */
record Context(Options options, Events events, Rounds rounds, Background background, String app) {
    private static final SecureRandom RANDOM = new SecureRandom();

    /** Returns a fresh nonce: 32 random hex digits. */
    static String nonce() {
        byte[] bytes = new byte[16];
        RANDOM.nextBytes(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    long now() {
        return options.nanoTime.getAsLong();
    }
}
