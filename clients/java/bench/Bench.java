import com.sun.management.OperatingSystemMXBean;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Cost of {@code once} around an empty function, compared with the same two calls written by hand
 * with {@code java.net.http}.
 *
 * <p>Run it with {@code scripts/with-gateway} and the class path of the client: {@code Bench SECONDS}. {@code Bench
 * SECONDS handoff} compares the calls by hand with the same ones on threads of their own.
 */
final class Bench {
    private static final String URL = System.getenv("ONCEGATE_URL");
    private static final String CREDENTIAL = System.getenv("ONCEGATE_CREDENTIAL");
    private static final AtomicLong ORDERS = new AtomicLong();

    /** Threads of exchanges, as the client has them. */
    private static final ExecutorService THREADS = Executors.newCachedThreadPool();

    private Bench() {}

    public static void main(String[] words) throws Exception {
        long seconds = Long.parseLong(words[0]);
        var client = new OncegateClient(new Options(URL).credential(CREDENTIAL));
        var http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        Callable<?> once = () -> client.once("order.submit", Map.of("order_id", order()), grant -> 7);
        Callable<?> byHand = () -> byHand(http);
        if (words.length > 1 && words[1].equals("handoff")) {
            // What the thread of each exchange costs: the calls by hand on threads of their own, in place of `once`.
            once = () -> byHand((path, body) -> THREADS.submit(() -> post(http, path, body)).get());
        }
        // Alternately, so that both have the same conditions; the first rounds warm up.
        var ratios = new TreeMap<Integer, List<Double>>();
        for (int round = 0; round < 9; round++) {
            for (int threads : new int[] {1, 64}) {
                boolean isFirst = round % 2 == 0;
                double first = run(round, threads, seconds, isFirst ? "by hand" : "once", isFirst ? byHand : once);
                double second = run(round, threads, seconds, isFirst ? "once" : "by hand", isFirst ? once : byHand);
                if (round > 1) {
                    double ratio = isFirst ? second / first : first / second;
                    ratios.computeIfAbsent(threads, none -> new ArrayList<>()).add(ratio);
                }
            }
        }
        ratios.forEach(
                (threads, all) -> {
                    Collections.sort(all);
                    System.out.printf(
                            "%2d threads: once takes %.2f times the CPU of the calls by hand (median of %d rounds, %.2f to %.2f)%n",
                            threads, all.get(all.size() / 2), all.size(), all.get(0), all.get(all.size() - 1));
                });
    }

    private static String order() {
        return "A-" + ORDERS.incrementAndGet() + "-" + ProcessHandle.current().pid();
    }

    private interface Post {
        String send(String path, String body) throws Exception;
    }

    private static Object byHand(HttpClient http) throws Exception {
        return byHand((path, body) -> post(http, path, body));
    }

    private static Object byHand(Post post) throws Exception {
        String claim =
                "{\"operation\":\"order.submit\",\"contents\":{\"order_id\":\"" + order() + "\"},\"attempt_nonce\":\"" + UUID.randomUUID() + "\"}";
        String answer = post.send("/v1/claims", claim);
        String outcome = "{\"attempt\":\"" + member(answer, "attempt") + "\",\"outcome\":\"success\",\"result\":7}";
        return post.send("/v1/claims/" + member(answer, "global_id") + "/outcome", outcome);
    }

    private static String member(String json, String name) {
        int from = json.indexOf('"' + name + "\":\"") + name.length() + 4;
        return json.substring(from, json.indexOf('"', from));
    }

    private static String post(HttpClient http, String path, String body) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(URL + path)).header("Content-Type", "application/json");
        request.header("Authorization", "Bearer " + CREDENTIAL).POST(HttpRequest.BodyPublishers.ofString(body));
        var answer = send(http, request.build());
        if (answer.statusCode() >= 300) {
            throw new IllegalStateException(answer.body());
        }
        return answer.body();
    }

    /**
     * Sends a request, and once more if its connection was lost. Java 17 now and then closes a pooled connection that another thread has just taken.
     */
    private static HttpResponse<String> send(HttpClient http, HttpRequest request) throws Exception {
        try {
            return http.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (IOException lost) {
            return http.send(request, HttpResponse.BodyHandlers.ofString());
        }
    }

    private static double run(int round, int threads, long seconds, String name, Callable<?> call) throws Exception {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long[][] times = new long[threads][];
        var ended = new CountDownLatch(threads);
        long cpu = system.getProcessCpuTime();
        long start = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            int own = thread;
            new Thread(
                            () -> {
                                try {
                                    times[own] = calls(start + seconds * 1_000_000_000L, call);
                                } finally {
                                    ended.countDown();
                                }
                            })
                    .start();
        }
        ended.await();
        if (Arrays.asList(times).contains(null)) {
            throw new IllegalStateException("a call failed (see above)");
        }
        double took = (System.nanoTime() - start) / 1e9;
        double used = (system.getProcessCpuTime() - cpu) / 1e3;
        long[] all = Arrays.stream(times).flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf(
                "round %d %-8s %2d threads: %6.0f calls/s, p50 %6.2f ms, p99 %6.2f ms, %5.0f us CPU of the client%n",
                round, name, threads, all.length / took, all[all.length / 2] / 1e6, all[all.length * 99 / 100] / 1e6, used / all.length);
        return used / all.length;
    }

    private static long[] calls(long until, Callable<?> call) {
        // It grows: one array for all times would be humongous to G1, which then marks its whole heap in each round.
        long[] times = new long[4096];
        int count = 0;
        for (long now = System.nanoTime(); now < until; ) {
            try {
                call.call();
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
            long next = System.nanoTime();
            if (count == times.length) {
                times = Arrays.copyOf(times, 2 * count);
            }
            times[count++] = next - now;
            now = next;
        }
        return Arrays.copyOf(times, count);
    }
}
