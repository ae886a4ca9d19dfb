package io.oncegate.client.servlet;

import java.io.IOException;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.Writer;

/**
 * The text of a response, on its way to the bytes. It lives as long as the response, as a
 * container's does: layers keep it, also over a reset.
 */
final class RecordedWriter extends Writer {
    private final RecordedResponse response;
    private final RecordedOutput output;

    /** Null before the first character, and after a reset. */
    private Writer encoder;

    RecordedWriter(RecordedResponse response, RecordedOutput output) {
        this.response = response;
        this.output = output;
    }

    /** Forgets what was written and is not encoded yet. */
    void reset() {
        encoder = null;
    }

    @Override
    public void write(char[] text, int from, int length) throws IOException {
        if (encoder == null) {
            encoder =
                    new OutputStreamWriter(new Unflushed(output), response.getCharacterEncoding());
        }
        encoder.write(text, from, length);
    }

    /** Moves all characters to the bytes; passes nothing on. */
    void encode() throws IOException {
        if (encoder != null) {
            encoder.flush();
        }
    }

    @Override
    public void flush() throws IOException {
        encode();
        output.flush();
    }

    @Override
    public void close() throws IOException {
        encode();
        output.close();
    }

    /** The encoder's flush is not one of the response. */
    private static final class Unflushed extends OutputStream {
        private final OutputStream output;

        Unflushed(OutputStream output) {
            this.output = output;
        }

        @Override
        public void write(int unit) throws IOException {
            output.write(unit);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            output.write(bytes, from, length);
        }
    }
}
