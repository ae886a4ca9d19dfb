package io.oncegate.client.servlet;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import java.io.IOException;
import java.util.function.Supplier;

/** A body that was read before, and what may follow it. */
final class BufferedInput extends ServletInputStream {
    private final byte[] bytes;
    private final ServletInputStream rest;
    private final Supplier<AsyncContext> async;
    private int at;

    BufferedInput(byte[] bytes, ServletInputStream rest, Supplier<AsyncContext> async) {
        this.bytes = bytes;
        this.rest = rest;
        this.async = async;
    }

    @Override
    public int read() throws IOException {
        if (at < bytes.length) {
            return bytes[at++] & 0xff;
        }
        return rest == null ? -1 : rest.read();
    }

    @Override
    public int read(byte[] into, int from, int length) throws IOException {
        if (length == 0) {
            return 0;
        }
        if (at == bytes.length) {
            return rest == null ? -1 : rest.read(into, from, length);
        }
        int taken = Math.min(length, bytes.length - at);
        System.arraycopy(bytes, at, into, from, taken);
        at += taken;
        return taken;
    }

    @Override
    public int available() throws IOException {
        return at < bytes.length || rest == null ? bytes.length - at : rest.available();
    }

    @Override
    public boolean isFinished() {
        return at == bytes.length && (rest == null || rest.isFinished());
    }

    @Override
    public boolean isReady() {
        return true;
    }

    /** Everything is there already: the listener is called once. */
    @Override
    public void setReadListener(ReadListener listener) {
        async.get()
                .start(
                        () -> {
                            try {
                                listener.onDataAvailable();
                                listener.onAllDataRead();
                            } catch (IOException | RuntimeException failed) {
                                listener.onError(failed);
                            }
                        });
    }
}
