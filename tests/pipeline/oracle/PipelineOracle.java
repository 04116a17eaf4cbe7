import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedWriter;
import java.io.File;
import java.lang.reflect.Field;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.avro.JsonProperties;
import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.generic.GenericData;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericRecordBuilder;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.PulsarClientImpl;
import org.apache.pulsar.client.impl.TopicMessageIdImpl;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Writes random messages to the topics of a plan with the official client, reads all of them back with it, and
 * writes what it read as lines of JSON. See `tests/pipeline/oracle/__main__.py`.
 *
 *     java -cp 'JARS/*' PipelineOracle.java PLAN.json pulsar://host:port KEYS_DIRECTORY OUTPUT.jsonl
 *
 * Values have one form on both sides: bytes in hex, floats by their bits, decimals as text with their scale, times
 * as microseconds, dates as days, maps as sorted lists of pairs, a union of several types as member0, member1...
 */
public class PipelineOracle {
    static final ObjectMapper JSON = new ObjectMapper()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .enable(JsonGenerator.Feature.WRITE_BIGDECIMAL_AS_PLAIN);
    static final ObjectMapper DOUBLES = new ObjectMapper();
    static final HexFormat HEX = HexFormat.of();
    static final String[] TEXTS = {"", "x", "Jürgen", "\u0000", "😀 \u2028", "null", "0", "a,\"b\"\\", "Ω".repeat(70)};
    static final int RECEIVE_SECONDS = 20;

    public static void main(String[] arguments) throws Exception {
        JsonNode plan = JSON.readTree(new File(arguments[0]));
        File keys = new File(arguments[2]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[1])
                     .memoryLimit(0, org.apache.pulsar.client.api.SizeUnit.BYTES)
                     .enableTransaction(has(plan, "transactions")).build();
             BufferedWriter output = Files.newBufferedWriter(Path.of(arguments[3]))) {
            for (JsonNode topic : plan) {
                new PipelineOracle(client, topic, keys, output).run();
            }
        }
        System.exit(0);
    }

    static boolean has(JsonNode plan, String what) {
        for (JsonNode topic : plan) {
            if (topic.path(what).asBoolean()) {
                return true;
            }
        }
        return false;
    }

    final PulsarClient client;
    final JsonNode topic;
    final File keys;
    final BufferedWriter output;
    final String name;
    final Random random;
    final List<String> refused = new ArrayList<>();
    final Map<String, Object> about = new LinkedHashMap<>();

    PipelineOracle(PulsarClient client, JsonNode topic, File keys, BufferedWriter output) {
        this.client = client;
        this.topic = topic;
        this.keys = keys;
        this.output = output;
        this.name = topic.get("topic").asText();
        this.random = new Random(topic.get("seed").asLong());
    }

    void run() throws Exception {
        about.put("about", name);
        List<Map<String, Object>> rows = new ArrayList<>();
        try {
            List<Integer> accepted = topic.path("read_only").asBoolean() ? List.of(0) : produceAll();
            about.put("accepted", accepted);
            if (!accepted.isEmpty()) {
                rows = readAll(topic.get("versions").get(accepted.get(accepted.size() - 1)));
            }
        } catch (Throwable error) {
            java.io.StringWriter trace = new java.io.StringWriter();
            error.printStackTrace(new java.io.PrintWriter(trace));
            about.put("failed", trace.toString());
        }
        about.put("refused", refused);
        about.put("rows", rows.size());
        write(about);
        for (Map<String, Object> row : rows) {
            write(row);
        }
    }

    void write(Map<String, Object> line) throws Exception {
        output.write(JSON.writeValueAsString(line));
        output.newLine();
    }

    // Writing

    List<Integer> produceAll() throws Exception {
        List<Integer> accepted = new ArrayList<>();
        JsonNode versions = topic.get("versions");
        for (int index = 0; index < versions.size(); index++) {
            try {
                produce(versions.get(index), topic.get("rows").get(index).asInt());
                accepted.add(index);
            } catch (PulsarClientException.IncompatibleSchemaException error) {
                refused.add("version " + index + ": " + error.getMessage());
            }
        }
        // once more with one of the older versions, as a producer that was not restarted writes
        if (accepted.size() > 1) {
            produce(versions.get(accepted.get(random.nextInt(accepted.size() - 1))), 10);
        }
        return accepted;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    void produce(JsonNode version, int count) throws Exception {
        Schema schema = schemaOf(version);
        ProducerBuilder builder = client.newProducer(schema).topic(name)
                .compressionType(CompressionType.valueOf(topic.get("compression").asText()))
                .blockIfQueueFull(true).maxPendingMessages(1000)
                .hashingScheme(random.nextBoolean() ? HashingScheme.JavaStringHash : HashingScheme.Murmur3_32Hash);
        boolean hasTransactions = topic.path("transactions").asBoolean();
        int chunkBytes = hasTransactions ? 0 : topic.get("chunk_bytes").asInt();
        if (hasTransactions) {
            builder.sendTimeout(0, TimeUnit.SECONDS);
        }
        if (topic.get("batching").asBoolean()) {
            builder.enableBatching(true).batchingMaxMessages(topic.get("batch_rows").asInt())
                    .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS)
                    .batcherBuilder(random.nextInt(3) == 0 ? BatcherBuilder.KEY_BASED : BatcherBuilder.DEFAULT);
        } else {
            builder.enableBatching(false);
        }
        if (chunkBytes > 0) {
            builder.enableChunking(true).chunkMaxMessageSize(chunkBytes);
        }
        if (topic.get("encrypted").asBoolean()) {
            builder.addEncryptionKey("key")
                    .defaultCryptoKeyReader("file://" + new File(keys, "public.pem").getAbsolutePath());
        }
        double nulls = topic.get("nulls").asDouble();
        List<Transaction> open = new ArrayList<>();
        try (Producer producer = builder.create()) {
            for (int row = 0; row < count; row++) {
                boolean isPair = version.get("kind").asText().equals("KEY_VALUE");
                Transaction within = hasTransactions ? oneOf(open) : null;
                TypedMessageBuilder message = within == null ? producer.newMessage() : producer.newMessage(within);
                message.value(!isPair && random.nextDouble() < nulls ? null : randomWhole(version, schema, nulls));
                if (!(isPair && version.get("encoding").asText().equals("SEPARATED"))) {
                    addKey(message);
                }
                if (random.nextInt(4) == 0) {
                    message.orderingKey(randomBytes(5));
                }
                if (random.nextInt(2) == 0) {
                    message.eventTime(1 + (random.nextInt(5) == 0 ? random.nextInt(100) : random.nextInt() * 1000L + (1L << 42)));
                }
                for (int count2 = random.nextInt(4); count2 > 1; count2--) {
                    message.property(TEXTS[1 + random.nextInt(TEXTS.length - 1)] + count2, text());
                }
                message.sendAsync();
            }
            producer.flush();
            while (!open.isEmpty()) {
                end(open);
            }
        }
    }

    /** A transaction that is open, with others or alone; null outside of them. Some end before. */
    Transaction oneOf(List<Transaction> open) throws Exception {
        if (!open.isEmpty() && random.nextInt(6) == 0) {
            end(open);
        }
        int chosen = random.nextInt(4);
        if (chosen == 0) {
            return null;
        }
        if (open.size() < chosen) {
            open.add(client.newTransaction().withTransactionTimeout(5, TimeUnit.MINUTES).build().get());
        }
        return open.get(random.nextInt(open.size()));
    }

    void end(List<Transaction> open) throws Exception {
        Transaction one = open.remove(random.nextInt(open.size()));
        boolean aborts = random.nextInt(3) == 0;
        try {
            (aborts ? one.abort() : one.commit()).get();
        } catch (java.util.concurrent.ExecutionException error) {
            // a slow broker has ended it when the client asks once more; how it ended, the rows tell
            if (!(error.getCause() instanceof TransactionCoordinatorClientException.TransactionNotFoundException)) {
                throw error;
            }
        }
        if (aborts) {
            about.merge("aborted", 1, (before, more) -> (Integer) before + (Integer) more);
        }
    }

    void addKey(TypedMessageBuilder<?> message) {
        switch (random.nextInt(5)) {
            case 0 -> message.key(text());
            case 1 -> message.key("key-" + random.nextInt(10));
            case 2 -> message.keyBytes(randomBytes(8));
            default -> { }
        }
    }

    static Schema<?> schemaOf(JsonNode version) {
        String kind = version.get("kind").asText();
        if (kind.equals("KEY_VALUE")) {
            return Schema.KeyValue(schemaOf(version.get("key")), schemaOf(version.get("value")),
                    KeyValueEncodingType.valueOf(version.get("encoding").asText()));
        }
        return switch (kind) {
            case "CLASS" -> {
                SchemaDefinition<Object> made = SchemaDefinition.builder().withPojo(classOf(version))
                        .withJSR310ConversionEnabled(version.get("jsr310").asBoolean()).build();
                yield version.get("as").asText().equals("JSON") ? Schema.JSON(made) : Schema.AVRO(made);
            }
            case "BYTES" -> Schema.BYTES;
            case "STRING" -> Schema.STRING;
            case "BOOLEAN" -> Schema.BOOL;
            case "INT8" -> Schema.INT8;
            case "INT16" -> Schema.INT16;
            case "INT32" -> Schema.INT32;
            case "INT64" -> Schema.INT64;
            case "FLOAT" -> Schema.FLOAT;
            case "DOUBLE" -> Schema.DOUBLE;
            case "DATE" -> Schema.DATE;
            case "TIME" -> Schema.TIME;
            case "TIMESTAMP" -> Schema.TIMESTAMP;
            case "INSTANT" -> Schema.INSTANT;
            case "LOCAL_DATE" -> Schema.LOCAL_DATE;
            case "LOCAL_TIME" -> Schema.LOCAL_TIME;
            case "LOCAL_DATE_TIME" -> Schema.LOCAL_DATE_TIME;
            default -> Schema.generic(SchemaInfo.builder().name("oracle").type(SchemaType.valueOf(kind))
                    .schema(version.get("definition").toString().getBytes(StandardCharsets.UTF_8)).build());
        };
    }

    static org.apache.avro.Schema definitionOf(JsonNode version) {
        return new org.apache.avro.Schema.Parser().parse(version.get("definition").toString());
    }

    Object randomWhole(JsonNode version, Schema<?> schema, double nulls) {
        String kind = version.get("kind").asText();
        switch (kind) {
            case "KEY_VALUE": {
                Object key = random.nextDouble() < nulls ? null : randomWhole(version.get("key"), partOf(version.get("key")), nulls);
                Object value = random.nextDouble() < nulls ? null : randomWhole(version.get("value"), partOf(version.get("value")), nulls);
                return new KeyValue<>(key, value);
            }
            case "AVRO":
            case "JSON": {
                org.apache.avro.Schema definition = definitionOf(version);
                GenericRecordBuilder builder = ((GenericSchema<GenericRecord>) schema).newRecordBuilder();
                for (org.apache.avro.Schema.Field field : definition.getFields()) {
                    Object value = randomValue(field.schema());
                    if (kind.equals("AVRO")) {
                        builder.set(field.name(), value);
                    } else if (value != null || random.nextBoolean()) {
                        builder.set(field.name(), plain(field.schema(), value));
                    }
                }
                return builder.build();
            }
            case "CLASS": return randomObject(classOf(version));
            case "BYTES": return randomBytes(40);
            case "STRING": return text();
            case "BOOLEAN": return random.nextBoolean();
            case "INT8": return (byte) random.nextInt();
            case "INT16": return (short) random.nextInt();
            case "INT32": return randomInt();
            case "INT64": return randomLong();
            case "FLOAT": return (float) randomDouble();
            case "DOUBLE": return randomDouble();
            case "DATE": return new java.util.Date(randomMillis(10_000));
            case "TIME": return new java.sql.Time(random.nextInt(86_400_000));
            case "TIMESTAMP": return new java.sql.Timestamp(random.nextInt(20) == 0 ? Long.MAX_VALUE : randomMillis(200_000));
            case "INSTANT": return Instant.ofEpochSecond(Math.floorDiv(randomMillis(200_000), 1000), random.nextInt(1_000_000_000));
            case "LOCAL_DATE": return LocalDate.ofEpochDay(randomDay());
            case "LOCAL_TIME": return LocalTime.ofNanoOfDay(random.nextLong(86_400_000_000_000L));
            case "LOCAL_DATE_TIME": return LocalDateTime.of(LocalDate.ofEpochDay(randomDay()), LocalTime.ofNanoOfDay(random.nextLong(86_400_000_000_000L)));
            default: throw new IllegalArgumentException(kind);
        }
    }

    final Map<JsonNode, Schema<?>> parts = new LinkedHashMap<>();

    Schema<?> partOf(JsonNode version) {
        return parts.computeIfAbsent(version, PipelineOracle::schemaOf);
    }

    String text() {
        return random.nextInt(2) == 0 ? TEXTS[random.nextInt(TEXTS.length)] : Integer.toString(random.nextInt(1000), 36);
    }

    byte[] randomBytes(int most) {
        byte[] made = new byte[random.nextInt(most + 1)];
        random.nextBytes(made);
        return made;
    }

    int randomInt() {
        return switch (random.nextInt(8)) {
            case 0 -> 0;
            case 1 -> -1;
            case 2 -> Integer.MAX_VALUE;
            case 3 -> Integer.MIN_VALUE;
            case 4, 5 -> random.nextInt(200) - 100;
            default -> random.nextInt();
        };
    }

    long randomLong() {
        return switch (random.nextInt(8)) {
            case 0 -> Long.MAX_VALUE;
            case 1 -> Long.MIN_VALUE;
            case 2, 3 -> randomInt();
            case 4 -> (1L << 53) + 1;
            default -> random.nextLong();
        };
    }

    double randomDouble() {
        return switch (random.nextInt(9)) {
            case 0 -> Double.NaN;
            case 1 -> Double.POSITIVE_INFINITY;
            case 2 -> -0.0;
            case 3 -> Double.MIN_VALUE;
            case 4 -> random.nextInt(100);
            case 5 -> Double.longBitsToDouble(random.nextLong());
            default -> random.nextGaussian();
        };
    }

    long randomDay() {
        return random.nextInt(4) == 0 ? random.nextInt(4_000_000) - 1_000_000 : random.nextInt(20_000);
    }

    /** Up to so many years from 1970, either way. */
    long randomMillis(int years) {
        long bound = random.nextInt(3) == 0 ? years * 31_556_952_000L : 1_700_000_000_000L;
        return random.nextLong(-bound, bound);
    }

    Object randomValue(org.apache.avro.Schema schema) {
        LogicalType logical = schema.getLogicalType();
        if (logical instanceof LogicalTypes.Decimal decimal) {
            BigInteger most = BigInteger.TEN.pow(decimal.getPrecision()).subtract(BigInteger.ONE);
            BigInteger unscaled = switch (random.nextInt(5)) {
                case 0 -> most;
                case 1 -> most.negate();
                case 2 -> BigInteger.valueOf(random.nextInt(19) - 9);
                default -> new BigInteger(most.bitLength() + 8, random).mod(most);
            };
            byte[] bytes = unscaled.toByteArray();
            if (schema.getType() == org.apache.avro.Schema.Type.BYTES) {
                return ByteBuffer.wrap(bytes);
            }
            byte[] wide = new byte[schema.getFixedSize()];
            java.util.Arrays.fill(wide, (byte) (unscaled.signum() < 0 ? -1 : 0));
            System.arraycopy(bytes, 0, wide, wide.length - bytes.length, bytes.length);
            return new GenericData.Fixed(schema, wide);
        }
        if (logical instanceof LogicalTypes.Date) {
            return (int) randomDay();
        }
        if (logical instanceof LogicalTypes.TimestampMillis) {
            return random.nextInt(20) == 0 ? (random.nextBoolean() ? Long.MAX_VALUE : Long.MIN_VALUE) : randomMillis(200_000);
        }
        switch (schema.getType()) {
            case NULL: return null;
            case BOOLEAN: return random.nextBoolean();
            case INT: return randomInt();
            case LONG: return randomLong();
            case FLOAT: return (float) randomDouble();
            case DOUBLE: return randomDouble();
            case STRING: return text();
            case BYTES: return ByteBuffer.wrap(randomBytes(20));
            case FIXED: {
                byte[] bytes = new byte[schema.getFixedSize()];
                random.nextBytes(bytes);
                return new GenericData.Fixed(schema, bytes);
            }
            case ENUM: {
                List<String> symbols = schema.getEnumSymbols();
                return new GenericData.EnumSymbol(schema, symbols.get(random.nextInt(symbols.size())));
            }
            case ARRAY: {
                List<Object> items = new ArrayList<>();
                for (int count = count(); count > 0; count--) {
                    items.add(randomValue(schema.getElementType()));
                }
                return items;
            }
            case MAP: {
                Map<String, Object> found = new LinkedHashMap<>();
                for (int count = count(); count > 0; count--) {
                    found.put(text(), randomValue(schema.getValueType()));
                }
                return found;
            }
            case UNION: return randomValue(schema.getTypes().get(random.nextInt(schema.getTypes().size())));
            case RECORD: {
                GenericData.Record record = new GenericData.Record(schema);
                for (org.apache.avro.Schema.Field field : schema.getFields()) {
                    record.put(field.pos(), randomValue(field.schema()));
                }
                return record;
            }
            default: throw new IllegalArgumentException(schema.toString());
        }
    }

    int count() {
        return random.nextInt(3) == 0 ? 0 : random.nextInt(random.nextInt(20) == 0 ? 60 : 4);
    }

    /** As a field of a class that Jackson writes. */
    Object plain(org.apache.avro.Schema schema, Object value) {
        if (value == null) {
            return null;
        }
        if (schema.getLogicalType() instanceof LogicalTypes.Decimal decimal) {
            return decimalOf(value, decimal);
        }
        return switch (schema.getType()) {
            case BYTES, FIXED -> bytesOf(value);
            case ENUM -> value.toString();
            case UNION -> plain(schema.getTypes().get(branchOf(schema, value)), value);
            case ARRAY -> {
                List<Object> items = new ArrayList<>();
                ((List<?>) value).forEach(each -> items.add(plain(schema.getElementType(), each)));
                yield items;
            }
            case MAP -> {
                Map<String, Object> found = new LinkedHashMap<>();
                ((Map<?, ?>) value).forEach((key, each) -> found.put((String) key, plain(schema.getValueType(), each)));
                yield found;
            }
            case RECORD -> {
                Map<String, Object> found = new LinkedHashMap<>();
                for (org.apache.avro.Schema.Field field : schema.getFields()) {
                    Object each = ((GenericData.Record) value).get(field.pos());
                    if (each != null || random.nextBoolean()) {
                        found.put(field.name(), plain(field.schema(), each));
                    }
                }
                yield found;
            }
            default -> value;
        };
    }

    static int branchOf(org.apache.avro.Schema union, Object value) {
        return GenericData.get().resolveUnion(union, value);
    }

    static byte[] bytesOf(Object value) {
        if (value instanceof GenericData.Fixed fixed) {
            return fixed.bytes();
        }
        if (value instanceof byte[] bytes) {
            return bytes;
        }
        ByteBuffer buffer = ((ByteBuffer) value).duplicate();
        byte[] found = new byte[buffer.remaining()];
        buffer.get(found);
        return found;
    }

    static BigDecimal decimalOf(Object value, LogicalTypes.Decimal decimal) {
        return value instanceof BigDecimal given ? given : new BigDecimal(new BigInteger(bytesOf(value)), decimal.getScale());
    }

    // Classes of an application, for which the client makes the schema

    public enum Color { RED, GREEN, BLUE }

    public static class Inner {
        public int a;
        public String b;
        public List<Long> c;
    }

    public static class Plain {
        public boolean yes;
        public Boolean maybe;
        public byte tiny;
        public short small;
        public int number;
        public Integer optional;
        public long large;
        public float single;
        public Double real;
        public String text;
        public byte[] bytes;
        public Color color;
        public List<String> texts;
        public Map<String, Long> counts;
        public Inner inner;
        public List<Inner> many;
        public int[] numbers;
    }

    public static class Moments {
        public Instant at;
        public int number;
    }

    public static class Dates {
        public LocalDate day;
        public String text;
    }

    public static class Clocks {
        public LocalTime time;
        public LocalDateTime when;
    }

    public static class Amounts {
        public BigDecimal amount;
        public java.util.UUID id;
    }

    static Class<?> classOf(JsonNode version) {
        return switch (version.get("class").asText()) {
            case "Plain" -> Plain.class;
            case "Moments" -> Moments.class;
            case "Dates" -> Dates.class;
            case "Clocks" -> Clocks.class;
            case "Amounts" -> Amounts.class;
            default -> throw new IllegalArgumentException(version.toString());
        };
    }

    Object randomObject(Class<?> kind) {
        try {
            Object made = kind.getConstructor().newInstance();
            for (Field field : kind.getFields()) {
                if (field.getType().isPrimitive() || random.nextInt(4) > 0) {
                    field.set(made, randomOf(field.getType(), field.getName()));
                }
            }
            return made;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    Object randomOf(Class<?> kind, String name) {
        if (kind == boolean.class || kind == Boolean.class) {
            return random.nextBoolean();
        } else if (kind == byte.class) {
            return (byte) random.nextInt();
        } else if (kind == short.class) {
            return (short) random.nextInt();
        } else if (kind == int.class || kind == Integer.class) {
            return randomInt();
        } else if (kind == long.class) {
            return randomLong();
        } else if (kind == float.class) {
            return (float) randomDouble();
        } else if (kind == Double.class) {
            return randomDouble();
        } else if (kind == String.class) {
            return text();
        } else if (kind == byte[].class) {
            return randomBytes(20);
        } else if (kind == Color.class) {
            return Color.values()[random.nextInt(3)];
        } else if (kind == Inner.class) {
            return randomObject(kind);
        } else if (kind == int[].class) {
            return random.ints(count()).toArray();
        } else if (kind == Instant.class) {
            return Instant.ofEpochSecond(Math.floorDiv(randomMillis(5000), 1000),
                    random.nextInt(3) == 0 ? 0 : random.nextInt(1_000_000_000));
        } else if (kind == LocalDate.class) {
            return LocalDate.ofEpochDay(random.nextInt(40_000) - 10_000);
        } else if (kind == LocalTime.class) {
            return LocalTime.ofNanoOfDay(random.nextInt(86_400_000) * 1_000_000L);
        } else if (kind == LocalDateTime.class) {
            return LocalDateTime.ofEpochSecond(random.nextInt(), random.nextInt(1000) * 1_000_000, java.time.ZoneOffset.UTC);
        } else if (kind == BigDecimal.class) {
            return BigDecimal.valueOf(random.nextInt(), random.nextInt(6));
        } else if (kind == java.util.UUID.class) {
            return new java.util.UUID(random.nextLong(), random.nextLong());
        } else if (kind == Map.class) {
            Map<String, Long> found = new LinkedHashMap<>();
            for (int count = count(); count > 0; count--) {
                found.put(text(), randomLong());
            }
            return found;
        }
        List<Object> found = new ArrayList<>();
        for (int count = count(); count > 0; count--) {
            found.add(switch (name) {
                case "texts" -> text();
                case "many" -> randomObject(Inner.class);
                default -> randomLong();
            });
        }
        return found;
    }

    /** Without a type for them, times of a day and local times are the milliseconds that their definition says. */
    static Object ofClass(Object value) throws ReflectiveOperationException {
        if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long
                || value instanceof Short || value instanceof Byte || value instanceof String) {
            return value;
        } else if (value instanceof Float given) {
            return bits(given);
        } else if (value instanceof Double given) {
            return bits(given);
        } else if (value instanceof byte[] given) {
            return HEX.formatHex(given);
        } else if (value instanceof int[] given) {
            return java.util.Arrays.stream(given).boxed().toList();
        } else if (value instanceof Instant given) {
            return micros(given);
        } else if (value instanceof LocalDate given) {
            return given.toEpochDay();
        } else if (value instanceof LocalTime given) {
            return given.toNanoOfDay() / 1_000_000;
        } else if (value instanceof LocalDateTime given) {
            return given.toInstant(java.time.ZoneOffset.UTC).toEpochMilli();
        } else if (value instanceof List<?> given) {
            List<Object> items = new ArrayList<>();
            for (Object each : given) {
                items.add(ofClass(each));
            }
            return items;
        } else if (value instanceof Map<?, ?> given) {
            TreeMap<String, Object> sorted = new TreeMap<>();
            for (Map.Entry<?, ?> each : given.entrySet()) {
                sorted.put(each.getKey().toString(), ofClass(each.getValue()));
            }
            return pairs(sorted);
        } else if (value instanceof Inner) {
            Map<String, Object> found = new LinkedHashMap<>();
            for (Field field : value.getClass().getFields()) {
                found.put(field.getName(), ofClass(field.get(value)));
            }
            return found;
        }
        return value.toString();
    }

    // Reading

    List<Map<String, Object>> readAll(JsonNode latest) throws Exception {
        SchemaInfo info = ((PulsarClientImpl) client).getSchema(name).get().orElse(null);
        boolean hasSchema = !latest.get("kind").asText().equals("BYTES");
        if (hasSchema != (info != null && info.getType() != SchemaType.BYTES && info.getType() != SchemaType.NONE)) {
            throw new IllegalStateException("the registry has " + info);
        }
        if (latest.get("kind").asText().equals("CLASS")) {
            about.put("definition", JSON.readTree(info.getSchema()));
        }
        List<Map<String, Object>> rows = new ArrayList<>();
        ReaderBuilder<?> builder = client.newReader(schemaOf(latest)).topic(name).startMessageId(MessageId.earliest);
        if (topic.get("encrypted").asBoolean()) {
            builder.defaultCryptoKeyReader("file://" + new File(keys, "private.pem").getAbsolutePath());
        }
        try (Reader<?> reader = builder.create()) {
            while (reader.hasMessageAvailable()) {
                Message<?> message = reader.readNext(RECEIVE_SECONDS, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("no message after " + rows.size());
                }
                rows.add(rowOf(message, latest));
            }
        }
        return rows;
    }

    Map<String, Object> rowOf(Message<?> message, JsonNode latest) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", name);
        MessageId id = message.getMessageId();
        MessageIdImpl inner = (MessageIdImpl) (id instanceof TopicMessageIdImpl of ? of.getInnerMessageId() : id);
        row.put("id", HEX.formatHex(inner.toByteArray()));
        row.put("place", List.of(inner.getLedgerId(), inner.getEntryId(),
                inner instanceof BatchMessageIdImpl batch ? batch.getBatchIndex() : -1, inner.getPartitionIndex()));
        row.put("__topic", message.getTopicName());
        row.put("__key", message.hasKey() ? HEX.formatHex(message.getKeyBytes()) : null);
        row.put("__keyBase64", message.hasBase64EncodedKey());
        row.put("__orderingKey", message.hasOrderingKey() ? HEX.formatHex(message.getOrderingKey()) : null);
        row.put("__eventTime", message.getEventTime() == 0 ? null : message.getEventTime() * 1000);
        row.put("__publishTime", message.getPublishTime() * 1000);
        List<List<Object>> properties = new ArrayList<>();
        new TreeMap<>(message.getProperties()).forEach((key, value) -> properties.add(List.of(key, value)));
        row.put("__messageProperties", properties);
        row.put("__sequenceId", message.getSequenceId());
        row.put("__producerName", message.getProducerName());
        row.put("__schemaVersion", message.getSchemaVersion() == null ? null : HEX.formatHex(message.getSchemaVersion()));
        row.put("__redeliveryCount", message.getRedeliveryCount());
        try {
            Object value = message.getValue();
            row.put("null", value == null);
            row.put("value", columns(value, latest, message));
        } catch (Throwable error) {
            row.put("error", error.toString());
            row.put("payload", HEX.formatHex(message.getData()));
        }
        return row;
    }

    /** Of each column of the value. */
    Map<String, Object> columns(Object value, JsonNode latest, Message<?> message) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        switch (latest.get("kind").asText()) {
            case "KEY_VALUE" -> {
                KeyValue<?, ?> pair = (KeyValue<?, ?>) value;
                byte[] key = message.hasKey() ? message.getKeyBytes() : null;
                byte[] raw = message.getData();
                if (pair != null && latest.get("encoding").asText().equals("INLINE")) {
                    ByteBuffer both = ByteBuffer.wrap(raw);
                    key = part(both);
                    raw = part(both);
                }
                found.put("key", pair == null ? null : whole(pair.getKey(), latest.get("key"), key));
                found.put("value", pair == null ? null : whole(pair.getValue(), latest.get("value"), raw));
            }
            case "AVRO", "JSON" -> {
                org.apache.avro.Schema definition = definitionOf(latest);
                Map<?, ?> fields = (Map<?, ?>) whole(value, latest, message.getData());
                for (org.apache.avro.Schema.Field field : definition.getFields()) {
                    found.put(field.name(), fields == null ? null : fields.get(field.name()));
                }
            }
            case "CLASS" -> {
                for (Field field : classOf(latest).getFields()) {
                    found.put(field.getName(), value == null ? null : ofClass(field.get(value)));
                }
            }
            default -> found.put("value", whole(value, latest, message.getData()));
        }
        return found;
    }

    static byte[] part(ByteBuffer both) {
        int size = both.getInt();
        byte[] found = new byte[Math.max(size, 0)];
        both.get(found);
        return found;
    }

    /** A class may have a double or all digits where JSON has a number; the client's generic records have one of them. */
    Object whole(Object value, JsonNode version, byte[] raw) throws Exception {
        if (value == null) {
            return null;
        }
        return switch (version.get("kind").asText()) {
            case "AVRO" -> canonical(definitionOf(version), ((GenericObject) value).getNativeObject());
            case "JSON" -> fromJson(definitionOf(version),
                    DOUBLES.readTree(raw), JSON.readTree(raw));
            case "BYTES" -> HEX.formatHex((byte[]) value);
            case "FLOAT" -> bits((Float) value);
            case "DOUBLE" -> bits((Double) value);
            case "DATE" -> Math.floorDiv(((java.util.Date) value).getTime(), 86_400_000L);
            case "TIME" -> ((java.sql.Time) value).getTime();
            case "TIMESTAMP" -> micros(BigInteger.valueOf(((java.sql.Timestamp) value).getTime()), 1000);
            case "INSTANT" -> micros((Instant) value);
            case "LOCAL_DATE" -> ((LocalDate) value).toEpochDay();
            case "LOCAL_TIME" -> ((LocalTime) value).toNanoOfDay();
            case "LOCAL_DATE_TIME" -> micros(((LocalDateTime) value).toInstant(java.time.ZoneOffset.UTC));
            default -> value;
        };
    }

    static Object micros(Instant value) {
        return micros(BigInteger.valueOf(value.getEpochSecond()).multiply(BigInteger.valueOf(1_000_000))
                .add(BigInteger.valueOf(value.getNano() / 1000)), 1);
    }

    /** Beyond 64 bits: the last one of its unit that fits, as the data source says. */
    static Object micros(BigInteger value, long unit) {
        BigInteger found = value.multiply(BigInteger.valueOf(unit));
        if (found.bitLength() <= 63) {
            return found;
        }
        return Long.MAX_VALUE / unit * unit * found.signum();
    }

    static String bits(float value) {
        return "f" + Integer.toHexString(Float.floatToIntBits(value)) + " " + value;
    }

    static String bits(double value) {
        return "d" + Long.toHexString(Double.doubleToLongBits(value)) + " " + value;
    }

    static Object canonical(org.apache.avro.Schema schema, Object value) {
        LogicalType logical = schema.getLogicalType();
        if (logical instanceof LogicalTypes.Decimal decimal) {
            return decimalOf(value, decimal).toPlainString();
        }
        if (logical instanceof LogicalTypes.TimestampMillis) {
            return micros(BigInteger.valueOf((Long) value), 1000);
        }
        return switch (schema.getType()) {
            case NULL -> null;
            case FLOAT -> bits((Float) value);
            case DOUBLE -> bits((Double) value);
            case BYTES, FIXED -> HEX.formatHex(bytesOf(value));
            case STRING, ENUM -> value.toString();
            case ARRAY -> {
                List<Object> items = new ArrayList<>();
                ((List<?>) value).forEach(each -> items.add(canonical(schema.getElementType(), each)));
                yield items;
            }
            case MAP -> {
                TreeMap<String, Object> sorted = new TreeMap<>();
                ((Map<?, ?>) value).forEach((key, each) -> sorted.put(key.toString(), canonical(schema.getValueType(), each)));
                yield pairs(sorted);
            }
            case RECORD -> {
                Map<String, Object> found = new LinkedHashMap<>();
                org.apache.avro.generic.GenericRecord record = (org.apache.avro.generic.GenericRecord) value;
                for (org.apache.avro.Schema.Field field : schema.getFields()) {
                    found.put(field.name(), canonical(field.schema(), record.get(field.name())));
                }
                yield found;
            }
            case UNION -> {
                if (value == null) {
                    yield null;
                }
                org.apache.avro.Schema branch = schema.getTypes().get(branchOf(schema, value));
                List<org.apache.avro.Schema> branches = branchesOf(schema);
                if (branches.size() == 1) {
                    yield canonical(branch, value);
                }
                if (isOf(branches, org.apache.avro.Schema.Type.INT, org.apache.avro.Schema.Type.LONG)) {
                    yield ((Number) value).longValue();
                }
                if (isOf(branches, org.apache.avro.Schema.Type.FLOAT, org.apache.avro.Schema.Type.DOUBLE)) {
                    yield bits(((Number) value).doubleValue());
                }
                Map<String, Object> members = new LinkedHashMap<>();
                for (int index = 0; index < branches.size(); index++) {
                    members.put("member" + index, branches.get(index) == branch ? canonical(branch, value) : null);
                }
                yield members;
            }
            default -> value;
        };
    }

    static List<List<Object>> pairs(TreeMap<String, Object> sorted) {
        List<List<Object>> found = new ArrayList<>();
        sorted.forEach((key, value) -> found.add(java.util.Arrays.asList(key, value)));
        return found;
    }

    static List<org.apache.avro.Schema> branchesOf(org.apache.avro.Schema union) {
        List<org.apache.avro.Schema> found = new ArrayList<>(union.getTypes());
        found.removeIf(each -> each.getType() == org.apache.avro.Schema.Type.NULL);
        return found;
    }

    static boolean isOf(List<org.apache.avro.Schema> branches, org.apache.avro.Schema.Type one, org.apache.avro.Schema.Type other) {
        return branches.size() == 2 && branches.stream().allMatch(
                each -> each.getLogicalType() == null && (each.getType() == one || each.getType() == other));
    }

    /**
     * What a class with fields of these types has after Jackson has read it; fields that are not there have their
     * default. `node` has doubles, of which Java's decimals lose the sign of zero, `exact` has decimals.
     */
    static Object fromJson(org.apache.avro.Schema schema, JsonNode node, JsonNode exact) throws Exception {
        if (schema.getType() == org.apache.avro.Schema.Type.UNION) {
            return node.isNull() ? null : fromJson(branchesOf(schema).get(0), node, exact);
        }
        if (node.isNull()) {
            return null;
        }
        LogicalType logical = schema.getLogicalType();
        if (logical instanceof LogicalTypes.Decimal decimal) {
            return exact.decimalValue().setScale(decimal.getScale()).toPlainString();
        }
        if (logical instanceof LogicalTypes.TimestampMillis) {
            return micros(BigInteger.valueOf(node.longValue()), 1000);
        }
        return switch (schema.getType()) {
            case FLOAT -> bits(node.isTextual() ? Float.parseFloat(node.asText()) : node.floatValue());
            case DOUBLE -> bits(node.isTextual() ? Double.parseDouble(node.asText()) : node.doubleValue());
            case INT, LONG -> node.longValue();
            case BOOLEAN -> node.booleanValue();
            case STRING, ENUM -> node.textValue();
            case BYTES, FIXED -> HEX.formatHex(node.binaryValue());
            case ARRAY -> {
                List<Object> items = new ArrayList<>();
                for (int index = 0; index < node.size(); index++) {
                    items.add(fromJson(schema.getElementType(), node.get(index), exact.get(index)));
                }
                yield items;
            }
            case MAP -> {
                TreeMap<String, Object> sorted = new TreeMap<>();
                for (Map.Entry<String, JsonNode> each : node.properties()) {
                    sorted.put(each.getKey(), fromJson(schema.getValueType(), each.getValue(), exact.get(each.getKey())));
                }
                yield pairs(sorted);
            }
            case RECORD -> {
                Map<String, Object> found = new LinkedHashMap<>();
                for (org.apache.avro.Schema.Field field : schema.getFields()) {
                    JsonNode each = node.get(field.name());
                    found.put(field.name(), each != null ? fromJson(field.schema(), each, exact.get(field.name()))
                            : field.hasDefaultValue() ? canonicalDefault(field) : null);
                }
                yield found;
            }
            default -> throw new IllegalArgumentException(schema.toString());
        };
    }

    static Object canonicalDefault(org.apache.avro.Schema.Field field) {
        Object value = GenericData.get().getDefaultValue(field);
        return value == null || value == JsonProperties.NULL_VALUE ? null : canonical(field.schema(), value);
    }
}
