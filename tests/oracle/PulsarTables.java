import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.netty.buffer.Unpooled;
import java.io.File;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.jar.JarFile;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.service.AbstractDispatcherSingleActiveConsumer;
import org.apache.pulsar.broker.service.ConsistentHashingStickyKeyConsumerSelector;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.HashRangeAutoSplitStickyKeyConsumerSelector;
import org.apache.pulsar.broker.service.HashRangeExclusiveStickyKeyConsumerSelector;
import org.apache.pulsar.broker.service.RedeliveryTracker;
import org.apache.pulsar.broker.service.StickyKeyConsumerSelector;
import org.apache.pulsar.broker.service.TransportCnx;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.common.api.proto.BaseCommand;
import org.apache.pulsar.common.api.proto.CommandSubscribe.SubType;
import org.apache.pulsar.common.api.proto.KeySharedMeta;
import org.apache.pulsar.common.api.proto.KeySharedMode;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.naming.NamedEntity;
import org.apache.pulsar.common.naming.NamespaceName;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.topics.TopicList;
import org.apache.pulsar.common.util.Murmur3_32Hash;

/**
 * Computes the tables beside this file with Pulsar's own classes.
 *
 * <pre>java -cp 'DIRECTORY_OF_JARS/*' tests/oracle/PulsarTables.java tests/oracle/TABLE.tsv</pre>
 *
 * The inputs of each row (its first columns) and the comments come from the table, everything behind the inputs
 * is computed anew, and the whole table is printed: for a new row write its inputs into the file. The rows of
 * protocol_numbers.tsv have no inputs. Which columns are inputs is said in each table's comment.
 */
public class PulsarTables {
    interface Row {
        String[] computed(String[] inputs) throws Exception;
    }

    static final ObjectMapper JSON =
            JsonMapper.builder().enable(JsonWriteFeature.ESCAPE_NON_ASCII).build();
    static final String REFUSED = "refused";

    public static void main(String[] arguments) throws Exception {
        PrintStream table = System.out;
        System.setOut(System.err);  // what the classes log is no row
        Path file = Path.of(arguments[0]);
        List<String> lines = Files.readAllLines(file);
        String name = file.getFileName().toString();
        List<String> printed = new ArrayList<>(lines.stream().filter(line -> line.startsWith("#")).toList());
        if (name.equals("protocol_numbers.tsv")) {
            printed.addAll(protocolNumbers());
        } else {
            Map<String, Row> rows = Map.of(
                    "sticky_hashes.tsv", PulsarTables::stickyHash,
                    "sticky_keys.tsv", PulsarTables::stickyKey,
                    "topic_names.tsv", PulsarTables::topicName,
                    "namespaces.tsv", PulsarTables::namespace,
                    "tenants.tsv", PulsarTables::tenant,
                    "topic_lists.tsv", PulsarTables::topicList,
                    "active_consumers.tsv", PulsarTables::activeConsumer,
                    "hash_ranges.tsv", PulsarTables::hashRanges);
            int inputs = Map.of("active_consumers.tsv", 3, "hash_ranges.tsv", 3).getOrDefault(name, 1);
            for (String line : lines) {
                if (!line.startsWith("#")) {
                    String[] given = Arrays.copyOf(line.split("\t", -1), inputs);
                    printed.add(String.join("\t", given) + "\t" + String.join("\t", rows.get(name).computed(given)));
                }
            }
        }
        printed.forEach(line -> table.print(line + "\n"));
        table.flush();
        System.exit(0);  // some classes leave threads behind
    }

    // Keys

    static String[] stickyHash(String[] inputs) {
        byte[] key = HexFormat.of().parseHex(inputs[0].equals("-") ? "" : inputs[0]);
        return texts(
                Murmur3_32Hash.getInstance().makeHash(key),
                new ConsistentHashingStickyKeyConsumerSelector(1).makeStickyKeyHash(key),
                sameSlot(
                        new HashRangeAutoSplitStickyKeyConsumerSelector().makeStickyKeyHash(key),
                        new HashRangeExclusiveStickyKeyConsumerSelector().makeStickyKeyHash(key)));
    }

    static int sameSlot(int split, int fixed) {
        if (split != fixed) {
            throw new IllegalStateException("slots " + split + " and " + fixed + " need a column each");
        }
        return fixed;
    }

    static String[] stickyKey(String[] inputs) throws Exception {
        MessageMetadata metadata = new MessageMetadata()
                .setProducerName("p")
                .setSequenceId(77)
                .setPublishTime(5)
                .setPartitionKey(JSON.readValue(inputs[0], String.class))
                .setPartitionKeyB64Encoded(true);
        var entry = Commands.serializeMetadataAndPayload(Commands.ChecksumType.None, metadata, Unpooled.EMPTY_BUFFER);
        return texts(json(new String(Commands.peekStickyKey(entry, "t", "s"), StandardCharsets.UTF_8)));
    }

    // Names

    static String[] topicName(String[] inputs) throws Exception {
        String text = JSON.readValue(inputs[0], String.class);
        try {
            TopicName name = TopicName.get(text);
            return texts(
                    json(name.toString()),
                    json(name.getNamespace()),
                    json(name.getLocalName()),
                    name.getPartitionIndex(),
                    json(name.isPartitioned() ? name.getPartitionedTopicName() : null));
        } catch (IllegalArgumentException refused) {
            return texts(REFUSED);
        }
    }

    static String[] namespace(String[] inputs) throws Exception {
        try {
            NamespaceName name = NamespaceName.get(JSON.readValue(inputs[0], String.class));
            return texts(json(name.getTenant()), json(name.getCluster()), json(name.getLocalName()));
        } catch (IllegalArgumentException refused) {
            return texts(REFUSED);
        }
    }

    static String[] tenant(String[] inputs) throws Exception {
        try {
            NamedEntity.checkName(JSON.readValue(inputs[0], String.class));
            return texts("accepted");
        } catch (IllegalArgumentException refused) {
            return texts(REFUSED);
        }
    }

    static String[] topicList(String[] inputs) throws Exception {
        return texts(TopicList.calculateHash(List.of(JSON.readValue(inputs[0], String[].class))));
    }

    // Consumers

    /** A consumer without a connection; ranges are `0-99+200-299`. */
    static Consumer consumer(String name, int number, int priority, String ranges) throws Exception {
        Constructor<Consumer> constructor = Consumer.class.getDeclaredConstructor(String.class, int.class);
        constructor.setAccessible(true);
        Consumer consumer = constructor.newInstance(name, 1000);
        KeySharedMeta meta = new KeySharedMeta().setKeySharedMode(KeySharedMode.STICKY);
        for (String range : ranges.isEmpty() ? new String[0] : ranges.split("\\+")) {
            String[] ends = range.split("-");
            meta.addHashRange().setStart(Integer.parseInt(ends[0])).setEnd(Integer.parseInt(ends[1]));
        }
        // Consumers are told apart by their connections' addresses and ids.
        Object connection = Proxy.newProxyInstance(
                PulsarTables.class.getClassLoader(),
                new Class<?>[] {TransportCnx.class},
                (proxy, method, parameters) -> switch (method.getName()) {
                    case "hashCode" -> 1;
                    case "equals" -> proxy == parameters[0];
                    case "checkConnectionLiveness" -> CompletableFuture.completedFuture(Optional.of(true));
                    default -> method.getReturnType() == String.class ? "" : null;
                });
        Map<String, Object> values =
                Map.of("keySharedMeta", meta, "cnx", connection, "consumerId", (long) number, "priorityLevel", priority);
        for (var value : values.entrySet()) {
            Field field = Consumer.class.getDeclaredField(value.getKey());
            field.setAccessible(true);
            field.set(consumer, value.getValue());
        }
        return consumer;
    }

    static String[] activeConsumer(String[] inputs) throws Exception {
        List<Consumer> consumers = new ArrayList<>();
        for (String text : inputs[0].split(" ")) {
            String[] parts = text.split(":");
            consumers.add(consumer(parts[0], consumers.size(), Integer.parseInt(parts[1]), ""));
        }
        return texts(new Failover(inputs[1], Integer.parseInt(inputs[2])).chosen(consumers).consumerName());
    }

    static class Failover extends AbstractDispatcherSingleActiveConsumer {
        Failover(String topic, int partition) {
            super(SubType.Failover, partition, topic, null, new ServiceConfiguration(), null);
        }

        Consumer chosen(List<Consumer> connected) {
            consumers.addAll(connected);
            pickAndScheduleActiveConsumer();
            return getActiveConsumer();
        }

        // What a dispatcher does besides choosing: nothing, here.

        @Override
        protected void scheduleReadOnActiveConsumer() {}

        @Override
        protected void cancelPendingRead() {}

        @Override
        protected boolean isConsumersExceededOnSubscription() {
            return false;
        }

        @Override
        protected void reScheduleRead() {}

        @Override
        public String getName() {
            return topicName;
        }

        @Override
        public void consumerFlow(Consumer consumer, int permits) {}

        @Override
        public void redeliverUnacknowledgedMessages(Consumer consumer, long epoch) {}

        @Override
        public void redeliverUnacknowledgedMessages(Consumer consumer, List<Position> positions) {}

        @Override
        public void addUnAckedMessages(int count) {}

        @Override
        public RedeliveryTracker getRedeliveryTracker() {
            return null;
        }
    }

    static String[] hashRanges(String[] inputs) throws Exception {
        StickyKeyConsumerSelector selector = switch (inputs[0]) {
            case "consistent" -> new ConsistentHashingStickyKeyConsumerSelector(
                    new ServiceConfiguration().getSubscriptionKeySharedConsistentHashingReplicaPoints());
            case "split" -> new HashRangeAutoSplitStickyKeyConsumerSelector();
            case "fixed" -> new HashRangeExclusiveStickyKeyConsumerSelector();
            default -> throw new IllegalArgumentException(inputs[0]);
        };
        Map<String, Consumer> present = new LinkedHashMap<>();
        int number = 0;
        for (String text : inputs[1].split(" ")) {
            if (text.startsWith("-")) {
                selector.removeConsumer(present.remove(text.substring(1)));
                continue;
            }
            String[] parts = text.split("=", 2);
            Consumer joining = consumer(parts[0].split("#")[0], number++, 0, parts.length > 1 ? parts[1] : "");
            try {
                selector.addConsumer(joining).join();
            } catch (CompletionException refused) {
                String reason = refused.getCause().getMessage();
                for (var other : present.entrySet()) {
                    reason = reason.replace(other.getValue().toString(), "Consumer{" + other.getKey() + "}");
                }
                return texts(REFUSED, json(reason));
            }
            present.put(parts[0], joining);
        }
        List<String> owners = new ArrayList<>();
        for (String slot : inputs[2].split(" ")) {
            Consumer owner = selector.select(Integer.parseInt(slot));
            owners.add(owner == null ? "-" : labelOf(present, owner));
        }
        Map<String, List<int[]>> ranges = new TreeMap<>();
        for (var assigned : selector.getConsumerKeyHashRanges().entrySet()) {
            List<int[]> own = new ArrayList<>();
            for (Range range : assigned.getValue()) {
                own.add(new int[] {range.getStart(), range.getEnd()});
            }
            ranges.put(labelOf(present, assigned.getKey()), own);
        }
        return texts(String.join(" ", owners), json(ranges));
    }

    static String labelOf(Map<String, Consumer> present, Consumer consumer) {
        return present.entrySet().stream().filter(e -> e.getValue() == consumer).findFirst().orElseThrow().getKey();
    }

    // The protocol

    /** Each field and enum value of the client protocol, from the constants of the generated classes. */
    static List<String> protocolNumbers() throws Exception {
        List<String> fields = new ArrayList<>();
        List<String> values = new ArrayList<>();
        String folder = BaseCommand.class.getPackageName().replace('.', '/') + "/";
        File jar = new File(BaseCommand.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        TreeSet<String> names = new TreeSet<>();
        try (JarFile classes = new JarFile(jar)) {
            classes.stream()
                    .map(entry -> entry.getName())
                    .filter(name -> name.startsWith(folder) && name.endsWith(".class"))
                    .forEach(name -> names.add(name.substring(folder.length(), name.length() - ".class".length())));
        }
        for (String name : names) {
            Class<?> found = Class.forName(BaseCommand.class.getPackageName() + "." + name);
            if (found.isEnum()) {
                for (Object value : found.getEnumConstants()) {
                    values.add(name.replace('$', '.') + "\t" + value + "\t" + found.getMethod("getValue").invoke(value));
                }
            } else if (hasConstant(found, "_REQUIRED_FIELDS_MASK0") || name.indexOf('$') < 0) {
                fields.addAll(fieldsOf(name, found));
            }
        }
        fields.addAll(values);
        return fields;
    }

    static List<String> fieldsOf(String message, Class<?> found) throws Exception {
        List<String> rows = new ArrayList<>();
        int singular = 0;
        for (Field field : found.getDeclaredFields()) {
            if (!field.getName().endsWith("_FIELD_NUMBER")) {
                continue;
            }
            String name = field.getName().substring(1, field.getName().length() - "_FIELD_NUMBER".length());
            String label = "repeated";
            if (hasConstant(found, "_" + name + "_MASK")) {
                String required = "_REQUIRED_FIELDS_MASK" + singular++ / 32;
                boolean isRequired = hasConstant(found, required)
                        && (constant(found, required) & constant(found, "_" + name + "_MASK")) != 0;
                label = isRequired ? "required" : "optional";
            }
            int wireType = constant(found, "_" + name + "_TAG") & 7;
            rows.add(String.join("\t", message, name.toLowerCase(Locale.ROOT),
                    String.valueOf(constant(found, field.getName())), String.valueOf(wireType), label));
        }
        return rows;
    }

    static boolean hasConstant(Class<?> found, String name) {
        return Arrays.stream(found.getDeclaredFields()).anyMatch(field -> field.getName().equals(name));
    }

    static int constant(Class<?> found, String name) throws Exception {
        Field field = found.getDeclaredField(name);
        field.setAccessible(true);
        return field.getInt(null);
    }

    static String[] texts(Object... values) {
        return Arrays.stream(values).map(String::valueOf).toArray(String[]::new);
    }

    static String json(Object value) throws Exception {
        return JSON.writeValueAsString(value);
    }
}
