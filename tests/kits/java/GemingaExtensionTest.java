import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.time.Instant;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class GemingaExtensionTest {
    private static String left = "";

    @RegisterExtension
    static final GemingaExtension broker = new GemingaExtension(Map.of(
            "delayedDeliveryMinIndexCountPerBucket", "20",
            "managedLedgerMaxEntriesPerLedger", "20",
            "managedLedgerMinLedgerRolloverTimeMinutes", "0",
            "delayedDeliveryTrackerFactoryClassName",
            "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"));

    private static final Duration SOON = Duration.ofSeconds(5);
    private PulsarClient client;
    private Consumer<String> consumer;
    private Producer<String> producer;

    @BeforeEach
    void connect() throws PulsarClientException {
        client = PulsarClient.builder().serviceUrl(broker.serviceUrl()).build();
        consumer = client.newConsumer(Schema.STRING).topic(broker.topic("r")).subscriptionName("app")
                .subscriptionType(SubscriptionType.Shared).subscribe();
        producer = client.newProducer(Schema.STRING).topic(broker.topic("r")).create();
    }

    @BeforeEach
    void nothingOfTheTestBeforeIsLeft() throws Exception {
        HttpRequest look = HttpRequest.newBuilder(URI.create(broker.webUrl() + "/admin/v2/namespaces/public")).build();
        String namespaces = HttpClient.newHttpClient().send(look, HttpResponse.BodyHandlers.ofString()).body();
        assertTrue(left.isEmpty() || !namespaces.contains(left), namespaces);
        left = broker.topic("").substring("persistent://".length()).replaceAll("/$", "");
    }

    @AfterEach
    void close() throws PulsarClientException {
        client.close();
    }

    private void send(String text, Duration delay) throws PulsarClientException {
        producer.newMessage().value(text).deliverAfter(delay.toMillis(), TimeUnit.MILLISECONDS).send();
    }

    private String receive() throws PulsarClientException {
        Message<String> message = consumer.receive(10, TimeUnit.SECONDS);
        consumer.acknowledge(message);
        return message.getValue();
    }

    @Test
    void aMonth() throws Exception {
        send("renew", Duration.ofDays(30));
        broker.advance(Duration.ofDays(30));
        assertEquals("renew", receive());
        broker.assertDelivered("r", "app", SOON);
    }

    @Test
    void nothingIsEarly() throws Exception {
        send("renew", Duration.ofDays(30));
        broker.advance(Duration.ofDays(29));
        assertNull(consumer.receive(200, TimeUnit.MILLISECONDS));
        assertEquals(1, broker.backlog("r", "app"));
    }

    @Test
    void dueOrder() throws Exception {
        send("year", Duration.ofDays(365));
        send("month", Duration.ofDays(30));
        send("soon", Duration.ofSeconds(2));
        broker.advance(Duration.ofDays(366));
        assertEquals(List.of("soon", "month", "year"), List.of(receive(), receive(), receive()));
    }

    @Test
    void toAMoment() throws Exception {
        send("later", Duration.ofDays(1));
        Instant moment = broker.now().plus(Duration.ofDays(2));
        broker.advanceTo(moment);
        assertEquals("later", receive());
        assertTrue(!broker.now().isBefore(moment));
    }

    @Test
    void toTheNext() throws Exception {
        send("later", Duration.ofDays(1));
        Thread.sleep(100); // the dispatcher reads what was published
        broker.advanceToNext();
        assertEquals("later", receive());
    }

    @Test
    void aChain() throws Exception {
        consumer.close();
        List<String> came = new CopyOnWriteArrayList<>();
        client.newConsumer(Schema.STRING).topic(broker.topic("r")).subscriptionName("app")
                .subscriptionType(SubscriptionType.Shared).messageListener((own, message) -> {
                    try {
                        came.add(message.getValue());
                        send(String.valueOf(came.size()), Duration.ofHours(1));
                        own.acknowledge(message);
                    } catch (PulsarClientException error) {
                        throw new IllegalStateException(error);
                    }
                }).subscribe();
        send("0", Duration.ofHours(1));
        broker.advanceUntilAcknowledged(Duration.ofMinutes(330));
        assertEquals(List.of("0", "1", "2", "3", "4"), came);
    }

    @Test
    void drainLeavesWhatIsNotDue() throws Exception {
        send("now", Duration.ZERO);
        send("later", Duration.ofDays(1));
        assertEquals("now", receive());
        broker.drain("r", "app", SOON);
        assertEquals(1, broker.backlog("r", "app"));
    }

    @Test
    void whatIsNotDeliveredIsSaid() throws Exception {
        send("later", Duration.ofDays(1));
        AssertionError said = assertThrows(AssertionError.class,
                () -> broker.assertDelivered("r", "app", Duration.ZERO));
        assertTrue(said.getMessage().contains("1 entries of r / app are not acknowledged"), said.getMessage());
        assertTrue(said.getMessage().contains("; the broker's next message is due 20"), said.getMessage());
    }

    @Test
    void aPartitionedTopic() throws Exception {
        HttpRequest make = HttpRequest.newBuilder(URI.create(broker.webUrl() + "/admin/v2/"
                + broker.topic("parted").replace("://", "/") + "/partitions"))
                .header("Content-Type", "application/json").PUT(HttpRequest.BodyPublishers.ofString("3")).build();
        assertEquals(204, HttpClient.newHttpClient().send(make, HttpResponse.BodyHandlers.ofString()).statusCode());
        try (Consumer<String> all = client.newConsumer(Schema.STRING).topic(broker.topic("parted"))
                .subscriptionName("a b").subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<String> parted = client.newProducer(Schema.STRING).topic(broker.topic("parted")).create()) {
            for (int number = 0; number < 9; number++) {
                parted.newMessage().key("k" + number).value("m").deliverAfter(1, TimeUnit.DAYS).send();
            }
            assertEquals(9, broker.backlog("parted", "a b"));
            broker.drain("parted", "a b", SOON);
            AssertionError said = assertThrows(AssertionError.class,
                    () -> broker.assertDelivered("parted", "a b", Duration.ZERO));
            assertTrue(said.getMessage().contains("9 entries of parted / a b"), said.getMessage());
            broker.advance(Duration.ofDays(1));
            for (int number = 0; number < 9; number++) {
                all.acknowledge(all.receive(10, TimeUnit.SECONDS));
            }
            broker.assertDelivered("parted", "a b", SOON);
        }
    }

    @Test
    void aLostBucketCostsNothing() throws Exception {
        Set<String> sent = new HashSet<>();
        for (int number = 0; number < 100; number++) {
            send("m" + number, Duration.ofDays(1));
            sent.add("m" + number);
        }
        broker.loseBucket("r", "app");
        broker.advance(Duration.ofDays(2));
        Set<String> found = new HashSet<>();
        while (found.size() < 100) {
            found.add(receive());
        }
        assertEquals(sent, found);
        broker.assertDelivered("r", "app", SOON);
    }

    @Test
    void aSlowWire() throws Exception {
        broker.setFault("{\"place\": \"wire\", \"kind\": \"latency\", \"latencyMs\": 50, \"command\": \"SEND\"}");
        long beganNanos = System.nanoTime();
        send("slow", Duration.ZERO);
        assertTrue(System.nanoTime() - beganNanos >= 50_000_000L);
        broker.clearFaults();
        assertEquals("slow", receive());
    }
}
