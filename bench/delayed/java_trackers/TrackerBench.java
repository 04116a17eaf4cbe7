import io.netty.util.Timeout;
import io.netty.util.Timer;
import io.netty.util.TimerTask;
import io.netty.util.internal.PlatformDependent;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.delayed.AbstractDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.bucket.BucketDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.bucket.BucketSnapshotStorage;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;
import org.apache.pulsar.broker.service.persistent.PersistentDispatcherMultipleConsumers;

/**
 * Pulsar's delayed-delivery trackers, without a broker around them.
 *
 * <p>Arguments: memory|bucket DELAYS PER_MS TICK_MS MESSAGES MAX_BUCKETS. Prints one line of JSON. The
 * dispatcher is an object whose constructor never ran, with a name and a cursor that only holds properties; the
 * timer never fires; bucket snapshots are serialised and go to a file, outside the heap that is measured.
 */
public final class TrackerBench {
    static final int ENTRIES_PER_LEDGER = 50_000;
    static final int DRAIN_COUNT = 500;
    static final long START_MS = 1_700_000_000_000L;
    static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    /** Time that is set by hand. */
    static final class HandClock extends Clock {
        long ms;

        @Override
        public long millis() {
            return ms;
        }

        @Override
        public Instant instant() {
            return Instant.ofEpochMilli(ms);
        }

        @Override
        public ZoneId getZone() {
            return ZoneOffset.UTC;
        }

        @Override
        public Clock withZone(ZoneId zone) {
            return this;
        }
    }

    /** A timer that never fires. */
    static final class StillTimer implements Timer {
        @Override
        public Timeout newTimeout(TimerTask task, long delay, TimeUnit unit) {
            return new Timeout() {
                @Override
                public Timer timer() {
                    return StillTimer.this;
                }

                @Override
                public TimerTask task() {
                    return task;
                }

                @Override
                public boolean isExpired() {
                    return false;
                }

                @Override
                public boolean isCancelled() {
                    return false;
                }

                @Override
                public boolean cancel() {
                    return true;
                }
            };
        }

        @Override
        public Set<Timeout> stop() {
            return Collections.emptySet();
        }
    }

    /** Snapshots in a file. What is deleted is only forgotten. */
    static final class FileStorage implements BucketSnapshotStorage {
        final Path path = Files.createTempFile("snapshots", ".bin");
        final RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw");
        final Map<Long, long[]> places = new HashMap<>();
        long written;
        long live;
        int created;

        FileStorage() throws IOException {
            Files.delete(path);
        }

        private long append(byte[] bytes) throws IOException {
            long at = written;
            file.seek(at);
            file.write(bytes);
            written += bytes.length;
            return at;
        }

        private byte[] entry(long bucketId, int number) throws IOException {
            long[] at = places.get(bucketId);
            byte[] bytes = new byte[(int) (at[number + 1] - at[number])];
            file.seek(at[number]);
            file.readFully(bytes);
            return bytes;
        }

        /** Newer versions have generated this class with another tool: there an object parses itself. */
        private static SnapshotMetadata parsed(byte[] bytes) throws ReflectiveOperationException {
            Method parse = SnapshotMetadata.class.getMethod("parseFrom", byte[].class);
            if (Modifier.isStatic(parse.getModifiers())) {
                return (SnapshotMetadata) parse.invoke(null, bytes);
            }
            SnapshotMetadata metadata = SnapshotMetadata.class.getDeclaredConstructor().newInstance();
            parse.invoke(metadata, bytes);
            return metadata;
        }

        @Override
        public CompletableFuture<Long> createBucketSnapshot(SnapshotMetadata metadata,
                List<SnapshotSegment> segments, String key, String topic, String cursor) {
            try {
                long[] at = new long[segments.size() + 2];
                at[0] = append(metadata.toByteArray());
                for (int i = 0; i < segments.size(); i++) {
                    at[i + 1] = append(segments.get(i).toByteArray());
                }
                at[segments.size() + 1] = written;
                long id = ++created;
                places.put(id, at);
                live += written - at[0];
                return CompletableFuture.completedFuture(id);
            } catch (IOException error) {
                return CompletableFuture.failedFuture(error);
            }
        }

        @Override
        public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long bucketId) {
            try {
                return CompletableFuture.completedFuture(parsed(entry(bucketId, 0)));
            } catch (IOException | ReflectiveOperationException error) {
                return CompletableFuture.failedFuture(error);
            }
        }

        @Override
        public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(long bucketId, long first,
                long last) {
            try {
                List<SnapshotSegment> segments = new ArrayList<>();
                for (long number = first; number <= last; number++) {
                    SnapshotSegment segment = new SnapshotSegment();
                    segment.parseFrom(entry(bucketId, (int) number));
                    segments.add(segment);
                }
                return CompletableFuture.completedFuture(segments);
            } catch (IOException error) {
                return CompletableFuture.failedFuture(error);
            }
        }

        @Override
        public CompletableFuture<Long> getBucketSnapshotLength(long bucketId) {
            long[] at = places.get(bucketId);
            return CompletableFuture.completedFuture(at[at.length - 1] - at[0]);
        }

        @Override
        public CompletableFuture<Void> deleteBucketSnapshot(long bucketId) {
            long[] at = places.remove(bucketId);
            live -= at[at.length - 1] - at[0];
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void start() {
        }

        @Override
        public void close() throws IOException {
            file.close();
        }
    }

    static ManagedCursor cursor() {
        Map<String, String> properties = new HashMap<>();
        return (ManagedCursor) Proxy.newProxyInstance(TrackerBench.class.getClassLoader(),
                new Class<?>[] {ManagedCursor.class}, (proxy, method, args) -> {
                    switch (method.getName()) {
                        case "getCursorProperties":
                            return properties;
                        case "putCursorProperty":
                            properties.put((String) args[0], (String) args[1]);
                            return CompletableFuture.completedFuture(null);
                        case "removeCursorProperty":
                            properties.remove((String) args[0]);
                            return CompletableFuture.completedFuture(null);
                        case "getName":
                            return "sub";
                        case "hashCode":
                            return 1;
                        case "equals":
                            return proxy == args[0];
                        case "toString":
                            return "sub";
                        default:
                            return null;
                    }
                });
    }

    static PersistentDispatcherMultipleConsumers dispatcher() throws ReflectiveOperationException {
        Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        sun.misc.Unsafe unsafe = (sun.misc.Unsafe) field.get(null);
        Class<?> type = PersistentDispatcherMultipleConsumers.class;
        Object made = unsafe.allocateInstance(type);
        unsafe.putObject(made, unsafe.objectFieldOffset(type.getDeclaredField("name")), "orders / sub");
        unsafe.putObject(made, unsafe.objectFieldOffset(type.getDeclaredField("cursor")), cursor());
        return (PersistentDispatcherMultipleConsumers) made;
    }

    static AbstractDelayedDeliveryTracker make(String kind, PersistentDispatcherMultipleConsumers dispatcher,
            long tickMs, HandClock clock, FileStorage storage, int maxBuckets) throws Exception {
        if (kind.equals("memory")) {
            return new InMemoryDelayedDeliveryTracker(dispatcher, new StillTimer(), tickMs, clock, false, 0);
        }
        return new BucketDelayedDeliveryTracker(dispatcher, new StillTimer(), tickMs, clock, false, storage,
                50_000, TimeUnit.SECONDS.toMillis(300), 5000, maxBuckets);
    }

    /** Delivery time of each message, -1 where a message is not delayed; the same draw in each run. */
    static final class Workload {
        final String delays;
        final int perMs;
        final long spanMs;
        final Random draw = new Random(1);

        Workload(String delays, int perMs, long messages) {
            this.delays = delays;
            this.perMs = perMs;
            this.spanMs = messages / perMs;
        }

        long next(long message) {
            long published = START_MS + message / perMs;
            switch (delays) {
                case "fixed":
                    return published;
                case "random":
                    return START_MS + (long) (draw.nextDouble() * spanMs);
                case "mix2":
                    return published + (message & 1) * 600_000;
                case "alt":
                    return (message & 1) == 0 ? published : -1;
                case "jitter":
                    return published + draw.nextInt(5000);
                default:
                    throw new IllegalArgumentException(delays);
            }
        }
    }

    static long used() throws InterruptedException {
        for (int i = 0; i < 4; i++) {
            System.gc();
            Thread.sleep(50);
        }
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    static long direct() {
        long bytes = Math.max(0, PlatformDependent.usedDirectMemory());
        for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
            if (pool.getName().equals("direct")) {
                bytes += pool.getMemoryUsed();
            }
        }
        return bytes;
    }

    static String run(String kind, String delays, int perMs, long tickMs, long messages, int maxBuckets,
            boolean weigh) throws Exception {
        HandClock clock = new HandClock();
        FileStorage storage = new FileStorage();
        PersistentDispatcherMultipleConsumers dispatcher = dispatcher();
        Workload workload = new Workload(delays, perMs, messages);
        long heapBefore = weigh ? used() : 0;
        long directBefore = direct();
        AbstractDelayedDeliveryTracker tracker = make(kind, dispatcher, tickMs, clock, storage, maxBuckets);
        long[] times = new long[1000];
        long addNanos = 0;
        long sealNanosMax = 0;
        long delayed = 0;
        for (long first = 0; first < messages; first += times.length) {
            for (int i = 0; i < times.length; i++) {
                times[i] = workload.next(first + i);
            }
            long ledger = 10_000 + first / ENTRIES_PER_LEDGER;
            int entry = (int) (first % ENTRIES_PER_LEDGER);
            long began = THREADS.getCurrentThreadCpuTime();
            int at = 0;
            if (entry == 0) {
                // The first message of a ledger is the one that has the bucket before it sealed.
                tracker.addMessage(ledger, entry, times[0]);
                sealNanosMax = Math.max(sealNanosMax, THREADS.getCurrentThreadCpuTime() - began);
                at = 1;
            }
            for (; at < times.length; at++) {
                tracker.addMessage(ledger, entry + at, times[at]);
            }
            addNanos += THREADS.getCurrentThreadCpuTime() - began;
        }
        delayed = tracker.getNumberOfDelayedMessages();
        long reported = tracker.getBufferMemoryUsage();
        long heap = weigh ? used() - heapBefore : 0;
        long direct = direct() - directBefore;
        long stored = storage.live;
        long written = storage.written;
        int buckets = storage.places.size();
        double recoverMs = 0;
        if (kind.equals("bucket") && weigh) {
            long began = THREADS.getCurrentThreadCpuTime();
            make(kind, dispatcher, tickMs, clock, storage, maxBuckets).close();
            recoverMs = (THREADS.getCurrentThreadCpuTime() - began) / 1e6;
        }
        clock.ms = START_MS + messages / perMs + 700_000 + 2 * tickMs;
        long drained = 0;
        long began = THREADS.getCurrentThreadCpuTime();
        int empty = 0;
        while (drained < delayed && empty < 1000) {
            int taken = tracker.getScheduledMessages(DRAIN_COUNT).size();
            drained += taken;
            empty = taken == 0 ? empty + 1 : 0;
        }
        long drainNanos = THREADS.getCurrentThreadCpuTime() - began;
        tracker.close();
        storage.close();
        return String.format(Locale.ROOT,
                "{\"class\": \"%s\", \"delays\": \"%s\", \"per_ms\": %d, \"tick_ms\": %d, \"messages\": %d,"
                + " \"delayed\": %d, \"add_millions_per_s\": %.3f, \"drain_millions_per_s\": %.3f,"
                + " \"drained\": %d, \"heap_bytes\": %d, \"direct_bytes\": %d, \"reported_bytes\": %d,"
                + " \"stored_bytes\": %d, \"written_bytes\": %d, \"buckets\": %d, \"buckets_max\": %d,"
                + " \"longest_seal_ms\": %.1f, \"recover_cpu_ms\": %.1f}",
                tracker.getClass().getSimpleName(), delays, perMs, tickMs, messages, delayed,
                messages / (addNanos / 1e3), drained / (drainNanos / 1e3), drained, heap, direct, reported,
                stored, written, buckets, maxBuckets, sealNanosMax / 1e6, recoverMs);
    }

    public static void main(String[] args) throws Exception {
        String kind = args[0];
        int perMs = Integer.parseInt(args[2]);
        long tickMs = Long.parseLong(args[3]);
        long messages = Long.parseLong(args[4]);
        int maxBuckets = Integer.parseInt(args[5]);
        for (int warm = 0; warm < 2; warm++) {
            run(kind, args[1], perMs, tickMs, Math.min(messages, 500_000), -1, false);
        }
        System.out.println(run(kind, args[1], perMs, tickMs, messages, maxBuckets, true));
        System.exit(0);
    }
}
