package io.oncegate.vectors;

import io.oncegate.client.CurrentGrant;
import io.oncegate.client.Grant;
import io.oncegate.client.JsonText;
import io.oncegate.client.Outcome;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.zip.GZIPOutputStream;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.http.HttpStatus;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.multipart.MultipartHttpServletRequest;
import org.springframework.web.server.ResponseStatusException;
import org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody;

/** Takes the steps of a request, with what servlets and Spring MVC have. */
@RestController
class ServletHandler {
    private static final String INCLUDED = "vectors.included";

    private final Runs runs = new Runs();

    @Value("${vectors.async}")
    private boolean isAsync;

    @GetMapping(path = "/runs", produces = "application/json")
    String runs(@RequestParam("case") String name) {
        return runs.json(name);
    }

    @ExceptionHandler(StockError.class)
    ResponseEntity<String> outOfStock(StockError error) {
        return ResponseEntity.status(HttpStatus.CONFLICT).body(error.getMessage());
    }

    @RequestMapping("/included")
    void included(HttpServletRequest request, HttpServletResponse response) throws IOException {
        byte[] json = (byte[]) request.getAttribute(INCLUDED);
        response.setContentLength(json.length);
        response.getOutputStream().write(json);
        response.flushBuffer();
    }

    private static void include(HttpServletRequest request, HttpServletResponse response)
            throws IOException {
        try {
            request.getRequestDispatcher("/included").include(request, response);
        } catch (ServletException failed) {
            throw new IllegalStateException(failed);
        }
    }

    @RequestMapping("/{at}/**")
    Object handle(HttpServletRequest request, HttpServletResponse response) throws IOException {
        byte[] body = request.getInputStream().readAllBytes();
        var run =
                runs.begin(
                        request.getHeader("Vector-Case"),
                        body,
                        request.getHeader("Accept-Encoding"));
        try {
            Object answer = steps(run, body, request, response);
            if (answer == null) {
                run.put("ended", "returned");
            }
            return answer;
        } catch (Throwable thrown) {
            run.put("ended", "raised");
            throw thrown;
        }
    }

    private Object steps(
            Map<String, Object> run,
            byte[] body,
            HttpServletRequest request,
            HttpServletResponse response)
            throws IOException {
        boolean encodes = false;
        int fails = -1;
        Map<String, Object> more = new LinkedHashMap<>();
        for (Map<?, ?> step : Steps.of(request.getHeader("Vector-Do"))) {
            String kind = (String) step.keySet().iterator().next();
            switch (kind) {
                case "sleep" -> Steps.sleep(Steps.number(step, kind, 0));
                case "poll" -> run.put("gone", poll(request, Steps.number(step, kind, 0)));
                case "mark" ->
                        CurrentGrant.get()
                                .orElseThrow()
                                .mark(
                                        Outcome.valueOf(
                                                ((String) step.get(kind))
                                                        .toUpperCase(java.util.Locale.ROOT)));
                case "raise" -> {
                    String error = (String) step.get(kind);
                    if (isLater(request)) {
                        return (Callable<Object>) () -> raisedLater(run, error);
                    }
                    raise(error);
                }
                case "after" -> {
                    int millis = Steps.number(step, kind, 0);
                    CompletableFuture.runAsync(
                            () -> {
                                Steps.sleep(millis);
                                run.put("after", "done");
                            });
                }
                case "fails" -> fails = Steps.number(step, kind, 0);
                case "encode" -> encodes = true;
                case "parsed" ->
                        more.put(
                                "value",
                                new JsonText(new String(body, StandardCharsets.UTF_8)).value());
                case "form" -> form((MultipartHttpServletRequest) request, more);
                case "respond" -> {
                    respond((Map<?, ?>) step.get(kind), response);
                    return null;
                }
                case "stream" -> {
                    return stream(run, (Map<?, ?>) step.get(kind), request, response);
                }
                default -> throw new IllegalArgumentException("no step " + kind);
            }
        }
        Map<String, Object> answer = Runs.copy(run);
        answer.putAll(more);
        byte[] json = JsonText.of(answer).text().getBytes(StandardCharsets.UTF_8);
        response.setStatus(201);
        response.setContentType("application/json");
        if (encodes && String.valueOf(request.getHeader("Accept-Encoding")).contains("gzip")) {
            response.setHeader("Content-Encoding", "gzip");
            var zipped = new ByteArrayOutputStream();
            try (var zip = new GZIPOutputStream(zipped)) {
                zip.write(json);
            }
            json = zipped.toByteArray();
        }
        if (fails >= 0) {
            // What follows the end of the output is background work.
            response.getOutputStream().write(json);
            response.getOutputStream().close();
            Steps.sleep(fails);
            run.put("after", "failed");
            throw new IllegalStateException("the background work fails");
        }
        if (request.getRequestURI().startsWith("/put-only/")) {
            // A page with another one in it, whose length is not that of the response.
            request.setAttribute(INCLUDED, json);
            response.getOutputStream().write(' ');
            include(request, response);
            response.getOutputStream().write('\n');
            return null;
        }
        if (!isAsync && !isLater(request)) {
            response.getOutputStream().write(json);
            return null;
        }
        byte[] later = json;
        Callable<ResponseEntity<byte[]>> answered =
                () -> {
                    run.put("ended", "returned");
                    return ResponseEntity.status(HttpStatus.CREATED)
                            .contentType(MediaType.APPLICATION_JSON)
                            .body(later);
                };
        return answered;
    }

    private static boolean poll(HttpServletRequest request, int millis) {
        // Servlets have no question of their own: the grant says it.
        var grant = (Grant) request.getAttribute(CurrentGrant.ATTRIBUTE);
        long ends = System.nanoTime() + millis * 1_000_000L;
        while (System.nanoTime() < ends) {
            if (grant != null && grant.callerGone().isDone()) {
                return true;
            }
            Steps.sleep(20);
        }
        return false;
    }

    /** Returns true for JSON cases: their ends come in an asynchronous dispatch on all servers. */
    private static boolean isLater(HttpServletRequest request) {
        return request.getRequestURI().startsWith("/json/");
    }

    private static Object raisedLater(Map<String, Object> run, String kind) {
        run.put("ended", "raised");
        raise(kind);
        return null;
    }

    private static void raise(String kind) {
        throw switch (kind) {
            case "stock" -> new StockError();
            case "http" -> new ResponseStatusException(HttpStatus.CONFLICT, "sold out");
            case "caused" -> new IllegalStateException("of the case", new StockError());
            default -> new IllegalStateException("of the case");
        };
    }

    private static void form(MultipartHttpServletRequest request, Map<String, Object> more) {
        Map<String, Object> fields = new LinkedHashMap<>();
        Map<String, Object> files = new LinkedHashMap<>();
        request.getParameterMap().forEach((name, values) -> fields.put(name, values[0]));
        request.getFileMap().forEach((name, file) -> files.put(name, file.getSize()));
        more.put("fields", fields);
        more.put("files", files);
    }

    private static void respond(Map<?, ?> respond, HttpServletResponse response)
            throws IOException {
        response.setStatus(Steps.number(respond, "status", 201));
        for (var field : Steps.headers(respond)) {
            response.addHeader(field.getKey(), field.getValue());
        }
        String body = Steps.body(respond);
        if (body != null) {
            response.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
        }
    }

    private Object stream(
            Map<String, Object> run,
            Map<?, ?> stream,
            HttpServletRequest request,
            HttpServletResponse response)
            throws IOException {
        response.setStatus(Steps.number(stream, "status", 201));
        if (request.getRequestURI().startsWith("/zip/")) {
            response.setContentType(Steps.ZIPPED);
        }
        for (var field : Steps.headers(stream)) {
            response.addHeader(field.getKey(), field.getValue());
        }
        if (Steps.flag(stream, "length")) {
            response.setContentLength(Steps.length(stream));
        }
        if (stream.get("trailers") instanceof Map<?, ?> given) {
            Map<String, String> trailers = new LinkedHashMap<>();
            given.forEach((name, value) -> trailers.put((String) name, Steps.text(value)));
            response.setTrailerFields(() -> trailers);
        }
        if (!isAsync) {
            rows(stream, response.getOutputStream());
            return null;
        }
        StreamingResponseBody body =
                out -> {
                    try {
                        rows(stream, out);
                        run.put("ended", "returned");
                    } catch (Throwable thrown) {
                        run.put("ended", "raised");
                        throw thrown;
                    }
                };
        return body;
    }

    private static void rows(Map<?, ?> stream, OutputStream out) throws IOException {
        int breaks = Steps.number(stream, "break_after", -1);
        for (int at = 0; at < Steps.number(stream, "rows", 0); at++) {
            if (at == breaks) {
                throw new IllegalStateException("of the case");
            }
            out.write(Steps.row(stream, at).getBytes(StandardCharsets.UTF_8));
            out.flush();
            Steps.sleep(Steps.number(stream, "every", 0));
        }
    }
}
