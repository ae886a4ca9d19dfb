import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.zookeeper.AsyncCallback.StringCallback;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** Prints how many nodes a second the asynchronous {@code create} makes: {@code Creates SERVERS BYTES AT_ONCE SECONDS}. */
final class Creates {
    /** Time in which the JVM compiles the client. */
    private static final double WARM_UP_SECONDS = 2;

    private Creates() {}

    public static void main(String[] words) throws Exception {
        byte[] value = new byte[Integer.parseInt(words[1])];
        var permits = new Semaphore(Integer.parseInt(words[2]));
        double seconds = Double.parseDouble(words[3]);
        var connected = new CountDownLatch(1);
        try (var zookeeper = new ZooKeeper(words[0], 30_000, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        })) {
            connected.await();
            String folder = "/creates-" + UUID.randomUUID();
            zookeeper.create(folder, new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            var done = new AtomicLong();
            StringCallback answered = (code, path, context, name) -> {
                if (code != KeeperException.Code.OK.intValue()) {
                    System.err.println("create: " + KeeperException.Code.get(code));
                    System.exit(1);
                }
                done.incrementAndGet();
                permits.release();
            };
            long began = System.nanoTime();
            long counted = 0;
            long from = 0;
            for (long number = 0; ; number++) {
                permits.acquire();
                double elapsed = (System.nanoTime() - began) / 1e9;
                if (from == 0 && elapsed >= WARM_UP_SECONDS) {
                    from = System.nanoTime();
                    counted = done.get();
                }
                if (elapsed >= WARM_UP_SECONDS + seconds) {
                    break;
                }
                zookeeper.create(folder + "/" + number, value, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, answered, null);
            }
            System.out.println((done.get() - counted) / ((System.nanoTime() - from) / 1e9));
        }
    }
}
