package io.oncegate.client.servlet;

import io.oncegate.client.http.Field;
import io.oncegate.client.http.Run;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.Charset;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Supplier;

/** The response as the handler writes it. It is recorded, and its end waits for the report. */
final class RecordedResponse extends HttpServletResponseWrapper {
    private static final String CONTENT_TYPE = "Content-Type";

    private final Exchange exchange;
    private final boolean takesTrailers;
    private final RecordedOutput output;
    private final RecordedWriter text;
    private PrintWriter writer;
    private boolean usesWriter;
    private boolean usesStream;
    private Supplier<Map<String, String>> trailers;

    RecordedResponse(HttpServletResponse response, Exchange exchange, boolean takesTrailers) {
        super(response);
        this.exchange = exchange;
        this.takesTrailers = takesTrailers;
        output = new RecordedOutput(this, exchange);
        text = new RecordedWriter(this, output);
    }

    /** Reports the response, and sends its end. */
    void finish() throws IOException {
        output.finish(text);
    }

    boolean isGone() {
        return output.isGone();
    }

    void callerGone() {
        output.callerGone();
    }

    /** Records the head, which goes out now. */
    void recordHead() {
        exchange.run().head(getStatus(), exchange.ownFields((HttpServletResponse) getResponse()));
    }

    void recordTrailers() {
        if (trailers != null) {
            List<Field> fields =
                    trailers.get().entrySet().stream()
                            .map(field -> new Field(field.getKey(), field.getValue()))
                            .toList();
            exchange.run().trailers(fields);
        }
    }

    @Override
    public ServletOutputStream getOutputStream() {
        if (usesWriter) {
            throw new IllegalStateException("getWriter() was called for this response");
        }
        usesStream = true;
        return output;
    }

    @Override
    public PrintWriter getWriter() throws IOException {
        if (usesStream) {
            throw new IllegalStateException("getOutputStream() was called for this response");
        }
        if (!usesWriter) {
            usesWriter = true;
            // As containers do: the field names the charset that is used.
            setCharacterEncoding(getCharacterEncoding());
        }
        if (writer == null) {
            writer = new PrintWriter(text);
        }
        return writer;
    }

    @Override
    public void flushBuffer() throws IOException {
        text.flush();
    }

    @Override
    public boolean isCommitted() {
        return output.isHeadSent() || super.isCommitted();
    }

    @Override
    public void setBufferSize(int size) {
        output.bufferSize(size);
    }

    @Override
    public int getBufferSize() {
        return output.bufferSize();
    }

    @Override
    public void resetBuffer() {
        resetBody();
        super.resetBuffer();
    }

    @Override
    public void reset() {
        resetBody();
        exchange.run().resetFields();
        usesWriter = false;
        usesStream = false;
        super.reset();
        exchange.sayDegraded((HttpServletResponse) getResponse());
    }

    private void resetBody() {
        output.reset();
        text.reset();
    }

    @Override
    public void sendError(int status) throws IOException {
        resetBody();
        exchange.errorSent();
        super.sendError(status);
    }

    @Override
    public void sendError(int status, String message) throws IOException {
        resetBody();
        exchange.errorSent();
        super.sendError(status, message);
    }

    @Override
    public void sendRedirect(String location) throws IOException {
        sendRedirect(location, SC_FOUND, true);
    }

    /** Overrides a method of Servlet 6.1. */
    public void sendRedirect(String location, int status, boolean clearBuffer) throws IOException {
        if (clearBuffer) {
            resetBuffer();
        }
        setStatus(status);
        setHeader("Location", location);
        output.close();
    }

    @Override
    public void setHeader(String name, String value) {
        if (!takes(name, value, false)) {
            super.setHeader(name, value);
        }
    }

    @Override
    public void addHeader(String name, String value) {
        if (!takes(name, value, true)) {
            super.addHeader(name, value);
        }
    }

    @Override
    public void setIntHeader(String name, int value) {
        if (!takes(name, Integer.toString(value), false)) {
            super.setIntHeader(name, value);
        }
    }

    @Override
    public void addIntHeader(String name, int value) {
        if (!takes(name, Integer.toString(value), true)) {
            super.addIntHeader(name, value);
        }
    }

    private boolean takes(String name, String value, boolean isAdded) {
        if (exchange.isIncluding()) {
            return false;
        }
        if (name.equalsIgnoreCase("Content-Length") && value != null && !isCommitted()) {
            output.declare(
                    value.strip().matches("[0-9]{1,18}") ? Long.parseLong(value.strip()) : -1);
            if (output.hasNoBody()) {
                // Some containers send it all the same.
                return true;
            }
        }
        if (output.isHeadSent()) {
            // Too late, as for the container. An outer layer that buffers would still take it.
            return true;
        }
        if (exchange.run().takes(name, List.of(value == null ? "" : value), isAdded)) {
            return true;
        }
        exchange.touch(name);
        return false;
    }

    @Override
    public void setStatus(int status) {
        if (!output.isHeadSent()) {
            super.setStatus(status);
        }
    }

    @Override
    public void setDateHeader(String name, long date) {
        if (touches(name)) {
            super.setDateHeader(name, date);
        }
    }

    @Override
    public void addDateHeader(String name, long date) {
        if (touches(name)) {
            super.addDateHeader(name, date);
        }
    }

    @Override
    public void setContentType(String type) {
        if (touches(CONTENT_TYPE)) {
            super.setContentType(type);
        }
    }

    @Override
    public void setCharacterEncoding(String charset) {
        if (touches(CONTENT_TYPE)) {
            super.setCharacterEncoding(charset);
        }
    }

    /** Returns true if a field can still be set, which the handler does now. */
    private boolean touches(String name) {
        if (output.isHeadSent()) {
            return false;
        }
        exchange.touch(name);
        return true;
    }

    /** Overrides a method of Servlet 6.1. */
    public void setCharacterEncoding(Charset charset) {
        setCharacterEncoding(charset == null ? null : charset.name());
    }

    @Override
    public void addCookie(Cookie cookie) {
        if (touches("Set-Cookie")) {
            super.addCookie(cookie);
        }
    }

    @Override
    public void setContentLength(int length) {
        setContentLengthLong(length);
    }

    @Override
    public void setContentLengthLong(long length) {
        if (!isCommitted() && !exchange.isIncluding()) {
            output.declare(length);
            if (!output.hasNoBody()) {
                super.setContentLengthLong(length);
            }
        }
    }

    @Override
    public void setLocale(Locale locale) {
        if (output.isHeadSent()) {
            return;
        }
        super.setLocale(locale);
        if (!isCommitted() && locale != null) {
            exchange.touch(CONTENT_TYPE);
            exchange.touch("Content-Language");
            // Containers add it when the head is sent, unseen.
            super.setHeader("Content-Language", locale.toLanguageTag());
        }
    }

    @Override
    public void setTrailerFields(Supplier<Map<String, String>> supplier) {
        trailers = supplier;
        if (takesTrailers) {
            super.setTrailerFields(supplier == null ? null : () -> sent(supplier.get()));
        }
    }

    private static Map<String, String> sent(Map<String, String> trailers) {
        Map<String, String> sent = new LinkedHashMap<>(trailers);
        sent.keySet().removeIf(Run::isOwn);
        return sent;
    }

    @Override
    public Supplier<Map<String, String>> getTrailerFields() {
        return trailers;
    }
}
