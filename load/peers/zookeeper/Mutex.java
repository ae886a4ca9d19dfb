import java.util.ArrayList;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Prints how often a second Curator's {@code InterProcessMutex} changes hands: {@code Mutex SERVERS CALLERS SECONDS}. Each caller is a
 * thread; two clients share them, as two gateways do.
 */
final class Mutex {
    /** Time in which the JVM compiles the client. */
    private static final double WARM_UP_SECONDS = 2;

    /** The lock guards both. */
    private static int last = -1;

    private static long handOvers;

    private Mutex() {}

    public static void main(String[] words) throws Exception {
        int callers = Integer.parseInt(words[1]);
        double seconds = Double.parseDouble(words[2]);
        var clients = new CuratorFramework[2];
        for (int number = 0; number < clients.length; number++) {
            clients[number] = CuratorFrameworkFactory.newClient(words[0], new RetryOneTime(100));
            clients[number].start();
        }
        long began = System.nanoTime();
        var threads = new ArrayList<Thread>();
        for (int caller = 0; caller < callers; caller++) {
            int own = caller;
            var mutex = new InterProcessMutex(clients[caller % clients.length], "/mutex");
            var thread = new Thread(() -> acquireAndRelease(mutex, own, began, seconds));
            thread.start();
            threads.add(thread);
        }
        for (var thread : threads) {
            thread.join();
        }
        System.out.println(handOvers / seconds);
        for (var client : clients) {
            client.close();
        }
    }

    private static void acquireAndRelease(InterProcessMutex mutex, int own, long began, double seconds) {
        try {
            for (double elapsed = 0; elapsed < WARM_UP_SECONDS + seconds; ) {
                mutex.acquire();
                elapsed = (System.nanoTime() - began) / 1e9;
                if (last != own && elapsed >= WARM_UP_SECONDS && elapsed < WARM_UP_SECONDS + seconds) {
                    handOvers++;
                }
                last = own;
                mutex.release();
            }
        } catch (Exception failed) {
            failed.printStackTrace();
            System.exit(1);
        }
    }
}
