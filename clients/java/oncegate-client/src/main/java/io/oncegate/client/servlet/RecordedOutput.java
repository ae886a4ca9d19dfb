package io.oncegate.client.servlet;

import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import java.io.ByteArrayOutputStream;
import java.io.IOException;

/**
 * The body of a response. A response in one piece waits for the report as a whole. Otherwise the
 * piece that fills its declared length waits, or its end. The recording continues after the caller
 * has disconnected.
 */
final class RecordedOutput extends ServletOutputStream {
    private static final int BUFFER = 8192;

    private final RecordedResponse response;
    private final Exchange exchange;
    private final ByteArrayOutputStream held = new ByteArrayOutputStream();
    private int bufferSize = BUFFER;
    private long declared = -1;
    private long written;
    private boolean headSent;
    private boolean finished;
    private boolean finishing;
    private volatile boolean gone;

    RecordedOutput(RecordedResponse response, Exchange exchange) {
        this.response = response;
        this.exchange = exchange;
    }

    boolean isHeadSent() {
        return headSent;
    }

    boolean isGone() {
        return gone;
    }

    void callerGone() {
        gone = true;
        exchange.run().grant().callerGone().complete(null);
    }

    void declare(long length) {
        declared = length;
    }

    int bufferSize() {
        return bufferSize;
    }

    void bufferSize(int size) {
        if (headSent || written > 0) {
            throw new IllegalStateException("Something was written already");
        }
        bufferSize = Math.max(BUFFER, size);
    }

    void reset() {
        if (headSent) {
            throw new IllegalStateException("The response has started");
        }
        held.reset();
        written = 0;
        declared = -1;
        exchange.run().reset();
    }

    @Override
    public void write(int unit) throws IOException {
        write(new byte[] {(byte) unit}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int from, int length) throws IOException {
        if (finished || hasNoBody()) {
            return;
        }
        exchange.run().body(bytes, from, length);
        written += length;
        if (isFull() || !headSent) {
            held.write(bytes, from, length);
            if (!isFull() && held.size() > bufferSize) {
                pass();
            }
        } else {
            send(bytes, from, length);
        }
    }

    /** Returns true for a status without a body. Some containers send one all the same. */
    boolean hasNoBody() {
        int status = response.getStatus();
        return status == 204 || status == 205 || status == 304;
    }

    private boolean isFull() {
        return declared >= 0 && written >= declared;
    }

    /** Passes on what there is. */
    @Override
    public void flush() throws IOException {
        if (finished || finishing) {
            return;
        }
        if (hasNoBody()) {
            // The head is the whole response, which waits for the report.
            sendHead();
            return;
        }
        if (isFull() && written > 0) {
            finish(null);
        } else {
            pass();
        }
        flushed();
    }

    private void pass() throws IOException {
        sendHead();
        byte[] bytes = held.toByteArray();
        held.reset();
        send(bytes, 0, bytes.length);
    }

    private void sendHead() {
        if (!headSent) {
            if (response.getStatus() == 205) {
                response.getResponse().setContentLengthLong(0);
            }
            response.recordHead();
            headSent = true;
        }
    }

    /** Reports, then sends the end. */
    void finish(RecordedWriter text) throws IOException {
        if (finished || finishing) {
            return;
        }
        finishing = true;
        if (text != null) {
            // Its remaining bytes go to this stream.
            text.encode();
        }
        sendHead();
        response.recordTrailers();
        if (declared < 0 || written == declared || hasNoBody()) {
            exchange.complete();
        } else {
            // Containers break it off, or cut it: no caller has the whole response.
            exchange.run().broken();
        }
        finished = true;
        byte[] bytes = held.toByteArray();
        held.reset();
        send(bytes, 0, bytes.length);
        if (response.getStatus() == 304) {
            // Else Jetty declares the length 0, as if the representation were empty.
            flushed();
        }
    }

    @Override
    public void close() throws IOException {
        boolean first = !finished;
        finish(null);
        if (first && !gone) {
            try {
                response.getResponse().getOutputStream().close();
            } catch (IOException | IllegalStateException away) {
                gone(away);
            }
        }
    }

    private void send(byte[] bytes, int from, int length) throws IOException {
        if (length == 0 || gone) {
            return;
        }
        try {
            response.getResponse().getOutputStream().write(bytes, from, length);
        } catch (IOException | IllegalStateException away) {
            gone(away);
        }
    }

    private void flushed() throws IOException {
        if (gone) {
            return;
        }
        try {
            response.getResponse().flushBuffer();
        } catch (IOException | IllegalStateException away) {
            gone(away);
        }
    }

    private void gone(Exception away) throws IOException {
        callerGone();
        if (exchange.stopsWhenGone()) {
            exchange.run().broken();
            throw away instanceof IOException io ? io : new IOException(away);
        }
    }

    @Override
    public boolean isReady() {
        return true;
    }

    /** Writes never wait for the caller's side here: the listener is called once. */
    @Override
    public void setWriteListener(WriteListener listener) {
        exchange.async(null)
                .start(
                        () -> {
                            try {
                                listener.onWritePossible();
                            } catch (IOException | RuntimeException failed) {
                                listener.onError(failed);
                            }
                        });
    }
}
