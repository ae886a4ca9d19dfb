package io.oncegate.client.servlet;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpUpgradeHandler;
import jakarta.servlet.http.Part;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * The request as the handler sees it: the body as if it had just come, and without the fields that
 * would make a response fit one caller only.
 */
final class BufferedRequest extends HttpServletRequestWrapper {
    private static final Set<String> HIDDEN = Set.of("accept-encoding", "range", "if-range");

    /**
     * The asynchronous state of Spring MVC. It is kept here: if the caller goes, the container's
     * error page would take over that of a handler that still runs.
     */
    private static final String WEB_ASYNC_MANAGER =
            "org.springframework.web.context.request.async.WebAsyncManager.WEB_ASYNC_MANAGER";

    private final ReadBody body;

    /** Null if nothing is recorded. */
    private final Exchange exchange;

    private Object asyncManager;
    private BufferedInput input;
    private BufferedReader reader;
    private Map<String, String[]> parameters;
    private List<Part> parts;

    BufferedRequest(HttpServletRequest request, ReadBody body, Exchange exchange) {
        super(request);
        this.body = body;
        this.exchange = exchange;
    }

    private boolean isHidden(String name) {
        return exchange != null && HIDDEN.contains(name.toLowerCase(Locale.ROOT));
    }

    private boolean isKept(String attribute) {
        return exchange != null && attribute.equals(WEB_ASYNC_MANAGER);
    }

    @Override
    public Object getAttribute(String name) {
        return isKept(name) ? asyncManager : super.getAttribute(name);
    }

    @Override
    public void setAttribute(String name, Object value) {
        if (isKept(name)) {
            asyncManager = value;
        } else {
            super.setAttribute(name, value);
        }
    }

    @Override
    public void removeAttribute(String name) {
        if (isKept(name)) {
            asyncManager = null;
        } else {
            super.removeAttribute(name);
        }
    }

    @Override
    public String getHeader(String name) {
        return isHidden(name) ? null : super.getHeader(name);
    }

    @Override
    public Enumeration<String> getHeaders(String name) {
        return isHidden(name) ? Collections.emptyEnumeration() : super.getHeaders(name);
    }

    @Override
    public Enumeration<String> getHeaderNames() {
        return Collections.enumeration(
                Collections.list(super.getHeaderNames()).stream()
                        .filter(name -> !isHidden(name))
                        .toList());
    }

    @Override
    public ServletInputStream getInputStream() {
        if (reader != null) {
            throw new IllegalStateException("getReader() was called for this request");
        }
        return input();
    }

    private BufferedInput input() {
        if (input == null) {
            input = new BufferedInput(body.bytes(), body.rest(), this::getAsyncContext);
        }
        return input;
    }

    @Override
    public BufferedReader getReader() {
        if (reader == null) {
            if (input != null) {
                throw new IllegalStateException("getInputStream() was called for this request");
            }
            reader = new BufferedReader(new InputStreamReader(input(), charset()));
        }
        return reader;
    }

    private Charset charset() {
        String name = getCharacterEncoding();
        return name == null ? StandardCharsets.UTF_8 : Charset.forName(name);
    }

    @Override
    public String getParameter(String name) {
        String[] values = getParameterValues(name);
        return values == null ? null : values[0];
    }

    @Override
    public String[] getParameterValues(String name) {
        return getParameterMap().get(name);
    }

    @Override
    public Enumeration<String> getParameterNames() {
        return Collections.enumeration(getParameterMap().keySet());
    }

    /** The container has the parameters of the query; those of the body are here. */
    @Override
    public Map<String, String[]> getParameterMap() {
        if (parameters == null) {
            parameters = Forms.parameters(super.getParameterMap(), this, body.bytes(), charset());
        }
        return parameters;
    }

    @Override
    public Collection<Part> getParts() throws IOException, ServletException {
        if (body.rest() != null) {
            return super.getParts();
        }
        if (parts == null) {
            parts = Forms.parts(this, body.bytes());
        }
        return parts;
    }

    @Override
    public Part getPart(String name) throws IOException, ServletException {
        return getParts().stream()
                .filter(part -> part.getName().equals(name))
                .findFirst()
                .orElse(null);
    }

    @Override
    public AsyncContext startAsync() {
        return exchange == null ? super.startAsync() : startAsync(this, exchange.response());
    }

    @Override
    public AsyncContext startAsync(ServletRequest request, ServletResponse response) {
        AsyncContext started = super.startAsync(request, response);
        return exchange == null ? started : exchange.started(started);
    }

    @Override
    public AsyncContext getAsyncContext() {
        AsyncContext context = super.getAsyncContext();
        return exchange == null ? context : exchange.async(context);
    }

    @Override
    public <T extends HttpUpgradeHandler> T upgrade(Class<T> handler)
            throws IOException, ServletException {
        if (exchange != null) {
            throw new ServletException(
                    "A request with an Idempotency-Key cannot upgrade its connection");
        }
        return super.upgrade(handler);
    }
}
