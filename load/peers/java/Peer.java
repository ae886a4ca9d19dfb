import io.lettuce.core.RedisClient;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.sync.RedisCommands;
import io.oncegate.client.Done;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.Terms;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;

/** The decision in Java: {@code SET NX} with Lettuce, or {@code once} of the client. See ../README.md. */
final class Peer {
    private static final Duration KEPT = Duration.ofMinutes(5);
    private static final int SAMPLE = 200;
    private static final String RUN = String.format("%08x", ThreadLocalRandom.current().nextInt());

    private Peer() {}

    /** Claims an operation. True if it was granted. */
    private interface Claim {
        boolean of(long order) throws InterruptedException;
    }

    private static Claim bare(String url) {
        RedisCommands<String, String> redis = RedisClient.create(url).connect().sync();
        SetArgs terms = SetArgs.Builder.nx().px(KEPT);
        return order -> {
            String hex = Long.toHexString(order);
            String key = "og:{" + RUN + "0".repeat(24 - hex.length()) + hex + "}:load";
            String value = "1767225600000000-" + "0".repeat(16 - hex.length()) + hex
                    + " 1p l=306s r=306s o=load.unique c={\"order\":\"" + RUN + "-" + order + "\"}";
            return redis.setGet(key, value, terms) == null;
        };
    }

    private static Claim ours(String credential) {
        OncegateClient client = new OncegateClient(new Options().credential(credential));
        Terms terms = Terms.NONE.lease(KEPT).retention("5m");
        return order -> client.once("load.unique", Map.of("order", RUN + "-" + order), terms, grant -> true) instanceof Done;
    }

    public static void main(String[] words) throws Exception {
        int callers = Integer.parseInt(words[0]);
        String url = System.getenv("REDIS_URL");
        Claim claim = url == null ? ours(System.getenv("ONCEGATE_CREDENTIAL")) : bare(url);
        long begins = System.nanoTime() + (long) (Double.parseDouble(words[1]) * 1e9);
        long ends = begins + (long) (Double.parseDouble(words[2]) * 1e9);
        AtomicLong next = new AtomicLong();
        AtomicLong granted = new AtomicLong();
        AtomicLong refused = new AtomicLong();
        List<Thread> all = new ArrayList<>();
        for (int caller = 0; caller < callers; caller++) {
            Thread thread = new Thread(() -> {
                try {
                    for (long now = System.nanoTime(); now - ends < 0; now = System.nanoTime()) {
                        boolean isGranted = claim.of(next.getAndIncrement());
                        if (now - begins >= 0) {
                            (isGranted ? granted : refused).incrementAndGet();
                        }
                    }
                } catch (Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            all.add(thread);
        }
        Thread.sleep(Math.max(0, (begins - System.nanoTime()) / 1_000_000));
        System.out.println("begin");
        for (Thread thread : all) {
            thread.join();
        }
        System.out.println("end " + granted + " " + refused);
        int repeated = 0;
        int again = 0;
        for (long order = 0; order < next.get(); order += Math.max(next.get() / SAMPLE, 1)) {
            repeated++;
            again += claim.of(order) ? 1 : 0;
        }
        System.out.println("repeated " + repeated + " " + again);
        System.in.readAllBytes();
        // The library has its own threads.
        System.exit(0);
    }
}
