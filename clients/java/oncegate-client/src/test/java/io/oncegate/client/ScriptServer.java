package io.oncegate.client;

import static io.oncegate.client.Vectors.number;
import static io.oncegate.client.Vectors.object;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** One server of a case: it plays the script, does not answer, closes connections, or is absent. */
final class ScriptServer implements AutoCloseable {
    private final String kind;
    private final int at;
    private final Script script;
    private final ServerSocket listener;

    /** Bound and without a listener: connections are refused. */
    private final Socket bound;

    private final Set<Socket> connections = ConcurrentHashMap.newKeySet();

    ScriptServer(String kind, int at, Script script) throws IOException {
        this.kind = kind;
        this.at = at;
        this.script = script;
        if (kind.equals("refused")) {
            listener = null;
            bound = new Socket();
            bound.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            return;
        }
        bound = null;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        start(this::accept);
    }

    String url() {
        if (kind.equals("unresolvable")) {
            return "http://" + "a".repeat(64) + ".invalid";
        }
        return "http://127.0.0.1:"
                + (bound == null ? listener.getLocalPort() : bound.getLocalPort());
    }

    private static void start(Runnable task) {
        var thread = new Thread(task, "script");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        while (!listener.isClosed()) {
            try {
                Socket connection = listener.accept();
                connections.add(connection);
                if (kind.equals("closing")) {
                    connection.close();
                } else if (kind.equals("script")) {
                    start(() -> serve(connection));
                }
            } catch (IOException closed) {
                return;
            }
        }
    }

    private void serve(Socket connection) {
        try (connection) {
            connection.setTcpNoDelay(true);
            InputStream in = connection.getInputStream();
            for (boolean open = true; open; ) {
                open = exchange(connection, in);
            }
        } catch (IOException | InterruptedException closed) {
            // The client or the case has ended.
        }
    }

    /** Reads one request and answers it. Returns false once the connection has ended. */
    private boolean exchange(Socket connection, InputStream in)
            throws IOException, InterruptedException {
        String first = line(in);
        if (first == null) {
            return false;
        }
        Map<String, String> headers = new HashMap<>();
        for (String header = line(in); header != null && !header.isEmpty(); header = line(in)) {
            int colon = header.indexOf(':');
            headers.put(
                    header.substring(0, colon).toLowerCase(Locale.ROOT),
                    header.substring(colon + 1).strip());
        }
        byte[] body = in.readNBytes(Integer.parseInt(headers.getOrDefault("content-length", "0")));
        String[] words = first.split(" ");
        Object answer =
                script.take(
                        at, words[0], words[1], headers, new String(body, StandardCharsets.UTF_8));
        if ("silence".equals(answer)) {
            script.answered();
            return true;
        }
        if (answer == null || answer instanceof String) {
            if ("reset".equals(answer)) {
                connection.setSoLinger(true, 0);
            }
            script.answering();
            script.answered();
            return false;
        }
        return write(connection, object(answer));
    }

    private boolean write(Socket connection, Map<String, Object> answer)
            throws IOException, InterruptedException {
        Thread.sleep(number(answer.get("delay_ms"), 0));
        int status = (int) number(answer.get("status"), 0);
        boolean isJson = answer.containsKey("body");
        String body =
                isJson
                        ? Json.write(script.filled(answer.get("body")))
                        : (String) answer.get("text");
        byte[] content = body.getBytes(StandardCharsets.UTF_8);
        var head =
                new StringBuilder(
                        "HTTP/1.1 "
                                + status
                                + " Scripted\r\nContent-Length: "
                                + content.length
                                + "\r\n");
        Map<String, Object> headers = object(answer.get("headers"));
        headers.forEach(
                (name, value) ->
                        head.append(name).append(": ").append(script.filled(value)).append("\r\n"));
        if (isJson) {
            head.append("Content-Type: application/")
                    .append(status < 400 ? "json" : "problem+json")
                    .append("\r\n");
        }
        var bytes = new ByteArrayOutputStream();
        bytes.writeBytes(head.append("\r\n").toString().getBytes(StandardCharsets.UTF_8));
        bytes.writeBytes(content);
        long cut = number(answer.get("cut_after_bytes"), Long.MAX_VALUE);
        byte[] all = bytes.toByteArray();
        script.answering();
        connection.getOutputStream().write(Arrays.copyOf(all, (int) Math.min(all.length, cut)));
        connection.getOutputStream().flush();
        script.answered();
        return cut >= all.length && !"close".equals(headers.get("connection"));
    }

    private static String line(InputStream in) throws IOException {
        var line = new StringBuilder();
        for (int next = in.read(); next != '\n'; next = in.read()) {
            if (next < 0) {
                return null;
            }
            if (next != '\r') {
                line.append((char) next);
            }
        }
        return line.toString();
    }

    @Override
    public void close() throws IOException {
        if (bound != null) {
            bound.close();
            return;
        }
        listener.close();
        for (Socket connection : connections) {
            connection.close();
        }
    }
}
