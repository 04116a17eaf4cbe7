import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Each test runs as the first, the second and the third of a broker: each is right in each order. */
class AbsoluteTimesTest {
    @RegisterExtension
    static final GemingaExtension broker = new GemingaExtension();

    private interface Asks {
        void of(TypedMessageBuilder<String> message, Instant now);
    }

    /** Publishes a message that is due in an hour, sees that it is not early, and receives it. */
    private void inAnHour(Clock clock, Asks asks) throws PulsarClientException {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl()).clock(clock).build();
                Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(broker.topic("r"))
                        .subscriptionName("app").subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(broker.topic("r")).create()) {
            TypedMessageBuilder<String> message = producer.newMessage().value("m");
            Instant now = broker.now();
            asks.of(message, now);
            message.send();
            broker.advanceTo(now.plus(Duration.ofMinutes(59)));
            assertNull(consumer.receive(200, TimeUnit.MILLISECONDS), "early");
            broker.advanceTo(now.plus(Duration.ofMinutes(61)));
            Message<String> came = consumer.receive(10, TimeUnit.SECONDS);
            assertEquals("m", came.getValue());
            consumer.acknowledge(came);
        }
    }

    @RepeatedTest(3)
    void aMomentOfTheMachinesClock() throws Exception {
        inAnHour(Clock.systemUTC(), (message, now) -> message.deliverAt(System.currentTimeMillis() + 3_600_000));
        broker.advance(Duration.ofDays(400));
    }

    @RepeatedTest(3)
    void aMomentOfTheBrokersClock() throws Exception {
        inAnHour(Clock.systemUTC(), (message, now) -> message.deliverAt(now.toEpochMilli() + 3_600_000));
        broker.advance(Duration.ofDays(400));
    }

    /** A client that stamps with the broker's time. */
    private static Clock brokersClock() {
        return Clock.offset(Clock.systemUTC(), Duration.between(Instant.now(), broker.now()));
    }

    @RepeatedTest(2)
    void aMomentFromAClientWithTheBrokersClock() throws Exception {
        inAnHour(brokersClock(), (message, now) -> message.deliverAt(now.toEpochMilli() + 3_600_000));
    }

    /** Java's client counts from the machine's clock here, whatever clock it is given: docs/testing.md warns. */
    @RepeatedTest(2)
    void aDelayFromAClientWithTheBrokersClockIsDueAtOnce() {
        AssertionError said = assertThrows(AssertionError.class, () -> inAnHour(brokersClock(),
                (message, now) -> message.deliverAfter(1, TimeUnit.HOURS)));
        assertTrue(said.getMessage().startsWith("early"), said.getMessage());
    }

    @RepeatedTest(2)
    void aMomentOfTheMachinesClockIsNoneToAdvanceTo() {
        IllegalArgumentException said = assertThrows(IllegalArgumentException.class,
                () -> broker.advanceTo(Instant.now().plus(Duration.ofDays(1))));
        assertTrue(said.getMessage().contains("Count from now() of the extension"), said.getMessage());
    }
}
