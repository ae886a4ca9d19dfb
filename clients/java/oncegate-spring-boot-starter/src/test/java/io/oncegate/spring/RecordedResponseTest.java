package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.oncegate.client.http.Idempotency;
import io.oncegate.client.servlet.IdempotencyFilter;
import io.oncegate.client.testing.MemoryGateway;
import jakarta.servlet.GenericServlet;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.mock.web.MockFilterChain;
import org.springframework.mock.web.MockFilterConfig;
import org.springframework.mock.web.MockHttpServletRequest;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.web.util.ContentCachingResponseWrapper;

/** Responses that a handler begins anew, or changes when it is too late. */
class RecordedResponseTest {
    /** A handler. */
    private interface Handler {
        void answer(HttpServletResponse response) throws IOException;
    }

    private IdempotencyFilter filter;

    @BeforeEach
    void makeFilter() throws Exception {
        var rules =
                new Idempotency<HttpServletRequest>(new MemoryGateway().client(), "shop.http")
                        .sharedKeys();
        filter = new IdempotencyFilter(rules);
        filter.init(new MockFilterConfig());
    }

    private void send(HttpServletResponse response, Handler handler) throws Exception {
        var servlet =
                new GenericServlet() {
                    @Override
                    public void service(ServletRequest request, ServletResponse answer)
                            throws IOException {
                        handler.answer((HttpServletResponse) answer);
                    }
                };
        var request = new MockHttpServletRequest("POST", "/orders");
        request.addHeader("Idempotency-Key", "k-1");
        filter.doFilter(request, response, new MockFilterChain(servlet));
    }

    /** The response to the first request, which is that to its repeat too. */
    private MockHttpServletResponse answer(Handler handler) throws Exception {
        var first = new MockHttpServletResponse();
        var repeat = new MockHttpServletResponse();
        send(first, handler);
        send(repeat, handler);
        assertThat(repeat.getHeader("Idempotent-Replayed")).isEqualTo("true");
        assertThat(repeat.getStatus()).isEqualTo(first.getStatus());
        assertThat(repeat.getContentAsString()).isEqualTo(first.getContentAsString());
        return first;
    }

    @Test
    void aWriterThatALayerKeepsWritesAfterAReset() throws Exception {
        var response =
                answer(
                        handled -> {
                            var kept = handled.getWriter();
                            kept.write("first");
                            handled.reset();
                            handled.setStatus(202);
                            kept.write("second");
                        });
        assertThat(response.getStatus()).isEqualTo(202);
        assertThat(response.getContentAsString()).isEqualTo("second");
    }

    @Test
    void aResetOfTheBufferForgetsText() throws Exception {
        var response =
                answer(
                        handled -> {
                            handled.getWriter().write("first");
                            handled.resetBuffer();
                            assertThatThrownBy(handled::getOutputStream)
                                    .isInstanceOf(IllegalStateException.class);
                            handled.getWriter().write("second");
                        });
        assertThat(response.getContentAsString()).isEqualTo("second");
    }

    @Test
    void afterAResetBytesMayFollowText() throws Exception {
        var response =
                answer(
                        handled -> {
                            handled.getWriter().write("first");
                            handled.reset();
                            handled.getOutputStream().write('2');
                        });
        assertThat(response.getContentAsString()).isEqualTo("2");
    }

    @Test
    void whatIsSetAfterTheHeadIsTooLateAlsoForALayerThatBuffers() throws Exception {
        Handler handler =
                handled -> {
                    handled.getWriter().write("a");
                    handled.flushBuffer();
                    handled.setStatus(500);
                    handled.setHeader("X-Late", "1");
                    handled.setDateHeader("X-Late", 0);
                    handled.setContentType("text/late");
                    handled.getWriter().write("b");
                };
        var first = new ContentCachingResponseWrapper(new MockHttpServletResponse());
        send(first, handler);
        assertThat(first.getStatus()).isEqualTo(200);
        assertThat(first.getHeader("X-Late")).isNull();
        assertThat(first.getContentType()).isNotEqualTo("text/late");
        assertThat(first.getContentAsByteArray()).asString().isEqualTo("ab");
        var repeat = new MockHttpServletResponse();
        send(repeat, handler);
        assertThat(repeat.getStatus()).isEqualTo(200);
        assertThat(repeat.getContentAsString()).isEqualTo("ab");
    }
}
