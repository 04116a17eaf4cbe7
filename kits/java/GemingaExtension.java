import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A Geminga broker for the tests of a class (JUnit 5): copy this file into your project.
 *
 * <pre>
 *   &#64;RegisterExtension static final GemingaExtension broker = new GemingaExtension();
 *
 *   &#64;Test void aMonth() throws Exception {
 *       // subscribe and publish with broker.serviceUrl() and broker.topic("reminders") ...
 *       broker.advance(Duration.ofDays(30));
 *   }
 * </pre>
 *
 * The command {@code geminga} has to be on the path, or the environment variable GEMINGA_COMMAND names it
 * ("python3 -m geminga"). The broker has free ports, a virtual clock, and faults allowed. It is ready in less than
 * half a second, and ends with the process of the tests, however that ends. Each test has a namespace of its own; the
 * clock is shared by the tests of the class, and begins 20 years ahead of the machine's. A failed test prints the end
 * of the broker's log.
 *
 * <p>With GEMINGA_SERVICE_URL and GEMINGA_WEB_URL in the environment it starts nothing and uses the broker there, which
 * needs a virtual clock and, for faults, {@code --chaos}; beyond loopback also GEMINGA_OPERATOR_TOKEN, the broker's.
 * The settings are those it was started with then.
 */
public final class GemingaExtension
        implements BeforeAllCallback, BeforeEachCallback, AfterEachCallback, AfterAllCallback {
    private static final int LOG_SHOWN = 4000;
    /** 20 years, to the same day of the week: so a moment of the broker's clock is never one of the machine's. */
    private static final long AHEAD_MS = 1044L * 7 * 86_400_000;
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    /** A broker that goes on running has the namespaces of earlier runs. */
    private static final String RUN = UUID.randomUUID().toString();

    private final Map<String, String> settings;
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> rules = new ArrayList<>();
    private Path directory;
    private Process process;
    private String serviceUrl;
    private String webUrl;
    private String namespace;

    public GemingaExtension() {
        this(Map.of());
    }

    /** Settings are keys of broker.conf. */
    public GemingaExtension(Map<String, String> settings) {
        this.settings = settings;
    }

    // -- life -------------------------------------------------------------------------------------------------

    @Override
    public void beforeAll(ExtensionContext context) throws IOException {
        serviceUrl = given("GEMINGA_SERVICE_URL");
        webUrl = given("GEMINGA_WEB_URL").replaceAll("/$", "");
        if (serviceUrl.isEmpty() != webUrl.isEmpty()) {
            throw new IllegalStateException("set both GEMINGA_SERVICE_URL and GEMINGA_WEB_URL, or neither");
        }
        if (serviceUrl.isEmpty()) {
            start();
        }
        String shown = ask("GET", "/geminga/clock", null);
        long missingMs = AHEAD_MS - (number(shown, "now_ms") - number(shown, "wall_ms"));
        if (missingMs > 0) {
            advance(Duration.ofMillis(missingMs));
        }
    }

    private static String given(String variable) {
        return System.getenv().getOrDefault(variable, "");
    }

    private void start() throws IOException {
        directory = Files.createTempDirectory("geminga-");
        String command = System.getenv().getOrDefault("GEMINGA_COMMAND", "geminga");
        List<String> line = new ArrayList<>(List.of(command.trim().split("\\s+")));
        line.addAll(List.of("standalone", "--port", "0", "--web-port", "0", "--clock", "virtual", "--chaos",
                "--stop-with-stdin", "--data-dir", directory.resolve("data").toString(),
                "--set", "isDelayedDeliveryDeliverAtTimeStrict=true"));
        settings.forEach((key, value) -> line.addAll(List.of("--set", key + "=" + value)));
        process = new ProcessBuilder(line).redirectError(directory.resolve("log").toFile()).start();
        BufferedReader out = process.inputReader();
        String ready = out.readLine();
        if (ready == null) {
            throw new IllegalStateException("the broker ended before it was ready:\n" + logEnd());
        }
        serviceUrl = text(ready, "binary");
        webUrl = text(ready, "web");
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        namespace = "public/test-" + RUN + "-" + NUMBERS.incrementAndGet();
        ask("PUT", "/admin/v2/namespaces/" + namespace, "{}");
    }

    @Override
    public void afterEach(ExtensionContext context) {
        while (!rules.isEmpty()) {
            quietly(this::clearFaults);
        }
        // Or a message that this test left would be the next to fall due in another one. The partitions of a topic go
        // with it, so they are not in the second list.
        quietly(() -> delete(ask("GET", "/admin/v2/persistent/" + namespace + "/partitioned", null), "/partitions"));
        quietly(() -> delete(ask("GET", "/admin/v2/persistent/" + namespace, null), ""));
        quietly(() -> ask("DELETE", "/admin/v2/namespaces/" + namespace, null));
        if (context.getExecutionException().isPresent()) {
            System.err.println("the end of the broker's log:\n" + logEnd());
        }
    }

    private void delete(String topics, String what) {
        Matcher names = Pattern.compile("persistent://([^\"]+)").matcher(topics);
        while (names.find()) {
            String path = path(names.group(1).substring(namespace.length() + 1));
            quietly(() -> ask("DELETE", path + what + "?force=true", null));
        }
    }

    /** The test may have killed the broker, and what it found is to be shown. */
    private static void quietly(Runnable cleaning) {
        try {
            cleaning.run();
        } catch (IllegalStateException | UncheckedIOException error) {
            System.err.println("after the test: " + error.getMessage());
        }
    }

    @Override
    public void afterAll(ExtensionContext context) throws IOException, InterruptedException {
        if (process == null) {
            return;
        }
        process.destroy();
        if (!process.waitFor(30, TimeUnit.SECONDS)) {
            process.destroyForcibly().waitFor();
        }
        try (Stream<Path> files = Files.walk(directory)) {
            files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        }
    }

    private String logEnd() {
        if (process == null) {
            return "is where it was started, " + webUrl;
        }
        try {
            String log = Files.readString(directory.resolve("log"));
            return log.substring(Math.max(0, log.length() - LOG_SHOWN));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    // -- addresses --------------------------------------------------------------------------------------------

    /** {@code pulsar://host:port}, for clients. */
    public String serviceUrl() {
        return serviceUrl;
    }

    /** {@code http://host:port}, for the admin API and metrics. */
    public String webUrl() {
        return webUrl;
    }

    /** The full name of a topic that no other test uses. */
    public String topic(String name) {
        return "persistent://" + namespace + "/" + name;
    }

    // -- time -------------------------------------------------------------------------------------------------

    /** What the broker's clock shows. */
    public Instant now() {
        return Instant.ofEpochMilli(number(ask("GET", "/geminga/clock", null), "now_ms"));
    }

    /**
     * Moves the clock. On return all that fell due has happened, in due order: each due message is with its
     * consumer, or waits for one.
     */
    public void advance(Duration length) {
        ask("POST", "/geminga/clock", "{\"ms\":" + length.toMillis() + "}");
    }

    /** As {@link #advance}; waits at each due time until consumers have acknowledged what they got. */
    public void advanceUntilAcknowledged(Duration length) {
        String moved = ask("POST", "/geminga/clock",
                "{\"ms\":" + length.toMillis() + ",\"wait\":\"acknowledged\"}");
        if (!moved.contains("\"unacknowledged\":[]")) {
            throw new AssertionError("not all was acknowledged within 30 s of its due time: " + moved);
        }
    }

    /** Moves the clock to a moment of it, which is none of the machine's clock. */
    public void advanceTo(Instant moment) {
        Instant now = now();
        if (moment.isBefore(now)) {
            throw new IllegalArgumentException(moment + " is in the past: the broker's clock shows " + now
                    + " and never goes back. Count from now() of the extension, not from the machine's clock");
        }
        ask("POST", "/geminga/clock", "{\"to_ms\":" + moment.toEpochMilli() + "}");
    }

    /** Moves the clock to when the next delayed message is due. */
    public void advanceToNext() {
        ask("POST", "/geminga/clock", "{\"next\":true}");
    }

    // -- faults -----------------------------------------------------------------------------------------------

    /** Deletes a bucket of the delayed index, and has the broker rebuild it. */
    public void loseBucket(String topic, String subscription) {
        ask("POST", "/geminga/delayed/persistent/" + namespace + "/" + encoded(topic) + "/subscription/"
                + encoded(subscription) + "/lose-bucket", "{}");
    }

    /** Puts a rule in force until the test ends: JSON as in docs/faults.md. */
    public void setFault(String rule) {
        rules.add(text(ask("POST", "/geminga/faults", rule), "id"));
    }

    /** Ends the rules of this test. */
    public void clearFaults() {
        while (!rules.isEmpty()) {
            ask("DELETE", "/geminga/faults/rules/" + rules.remove(0), null);
        }
    }

    // -- what is left -----------------------------------------------------------------------------------------

    /** Entries of a subscription that are not acknowledged, delayed ones too; a batch is one. */
    public long backlog(String topic, String subscription) {
        return number(subscription(topic, subscription), "msgBacklog");
    }

    /** Waits until all that may be delivered now is acknowledged; messages that are not due yet do not count. */
    public void drain(String topic, String subscription, Duration atMost) {
        until(atMost, () -> {
            String found = subscription(topic, subscription);
            long waits = number(found, "msgBacklog") - number(found, "msgDelayed");
            return waits <= 0 && number(found, "unackedMessages") == 0 ? "" : waits + " entries wait";
        });
    }

    /** Fails unless all that was published is acknowledged. */
    public void assertDelivered(String topic, String subscription, Duration atMost) {
        until(atMost, () -> {
            String found = subscription(topic, subscription);
            long backlog = number(found, "msgBacklog");
            return backlog == 0 ? "" : backlog + " entries of " + topic + " / " + subscription
                    + " are not acknowledged, " + number(found, "msgDelayed") + " of them not due yet";
        });
    }

    private void until(Duration atMost, Supplier<String> waits) {
        long endsNanos = System.nanoTime() + atMost.toNanos();
        String text;
        while (!(text = waits.get()).isEmpty()) {
            if (System.nanoTime() > endsNanos) {
                String clock = ask("GET", "/geminga/clock", null);
                throw new AssertionError("not within " + atMost + ": " + text + (clock.contains("\"next_due_ms\":null") ? ""
                        : "; the broker's next message is due " + Instant.ofEpochMilli(number(clock, "next_due_ms"))));
            }
            try {
                Thread.sleep(10);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new AssertionError("interrupted: " + text, error);
            }
        }
    }

    /** The part of a topic's statistics that is about one subscription; over all partitions, if it has any. */
    private String subscription(String topic, String subscription) {
        boolean partitioned = number(ask("GET", path(topic) + "/partitions", null), "partitions") > 0;
        String stats = ask("GET",
                path(topic) + (partitioned ? "/partitioned-stats?perPartition=false" : "/stats"), null);
        String all = stats.substring(stats.indexOf("\"subscriptions\""));
        int at = all.indexOf("\"" + subscription + "\":{");
        if (at < 0) {
            throw new AssertionError(topic + " has no subscription " + subscription);
        }
        return all.substring(at);
    }

    private String path(String topic) {
        return "/admin/v2/persistent/" + namespace + "/" + encoded(topic);
    }

    private static String encoded(String name) {
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    }

    // -- HTTP, and JSON without a library ---------------------------------------------------------------------

    private String ask(String method, String path, String body) {
        HttpRequest.BodyPublisher sent = body == null
                ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(webUrl + path))
                .header("Content-Type", "application/json").method(method, sent);
        String token = given("GEMINGA_OPERATOR_TOKEN");
        if (!token.isEmpty() && path.startsWith("/geminga/")) {
            request.header("Authorization", "Bearer " + token);
        }
        try {
            HttpResponse<String> response = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
            if (response.statusCode() >= 300) {
                throw new IllegalStateException(
                        method + " " + path + ": " + response.statusCode() + ": " + response.body());
            }
            return response.body();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private static long number(String json, String name) {
        return Long.parseLong(found(json, "\"" + name + "\"\\s*:\\s*(-?\\d+)"));
    }

    private static String text(String json, String name) {
        return found(json, "\"" + name + "\"\\s*:\\s*\"([^\"]*)\"");
    }

    private static String found(String json, String pattern) {
        Matcher matcher = Pattern.compile(pattern).matcher(json);
        if (!matcher.find()) {
            throw new IllegalStateException("no " + pattern + " in " + json);
        }
        return matcher.group(1);
    }
}
