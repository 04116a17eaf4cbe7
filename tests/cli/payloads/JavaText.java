// What Pulsar's classes make of payloads, for tests/cli/payloads: prints the table java_text.tsv.
//   java -cp 'JARS/*' tests/cli/payloads/JavaText.java > tests/cli/payloads/java_text.tsv
// Columns: kind, input, result. Bytes are in hexadecimal.
import io.netty.buffer.*;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;
import org.apache.commons.io.HexDump;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.api.proto.CompressionType;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.schema.*;

public class JavaText {
    static String hex(byte[] data) { return HexFormat.of().formatHex(data); }
    static void row(String kind, String input, String result) { System.out.println(kind + "\t" + input + "\t" + result); }

    public static void main(String[] arguments) throws Exception {
        for (String keys : List.of("a,b,c", "name,age,city,zip,street", "k1,k2,k3,k10,k11,k12,k13,k14,k15,k16,k17,k18,k19,k20",
                "Aa,BB,C#", "ümlaut,世界,\uD83D\uDE00,plain", "x", "traceparent,tenant-id,retry-count,x-request-id,Content-Type")) {
            Map<String, String> map = new HashMap<>();
            for (String key : keys.split(",")) map.put(key, "v");
            row("hash-order", keys, String.join(",", map.keySet()));
        }
        for (double number : new double[] {0, 1, -1, 0.1, 1.5, 100, 1e6, 9999999, 1e7, 12345678.5, 1e10, 1.25e20, 1e-3, 9.99e-4, 1e-5, -2.5e-10,
                123456789012345680.0, Double.NaN, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY})
            row("double", hex(java.nio.ByteBuffer.allocate(8).putDouble(number).array()), Double.toString(number));
        for (String text : List.of("hello", "0123456789abcdef", "0123456789abcdefg", "\u0000\u001b\u007f\u00fc~ ")) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            HexDump.dump(text.getBytes(StandardCharsets.UTF_8), 0, out, 0);
            row("hex-dump", hex(text.getBytes(StandardCharsets.UTF_8)), hex(out.toByteArray()));
        }
        StringBuilder longer = new StringBuilder();
        for (int number = 0; number < 3000; number++) longer.append(number % 7).append("repeated ");
        byte[] random = new byte[70000];
        new Random(1).nextBytes(random);
        byte[][] payloads = {"x".getBytes(), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".getBytes(), longer.toString().getBytes(), Arrays.copyOf(random, 100)};
        for (CompressionType type : List.of(CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY))
            for (byte[] payload : payloads) {
                ByteBuf packed = CompressionCodecProvider.getCompressionCodec(type).encode(Unpooled.wrappedBuffer(payload));
                row("packed-" + type, hex(ByteBufUtil.getBytes(packed)), payload.length + ":" + Arrays.hashCode(payload));
            }
        KeyValueSchemaRows();
        String definition = "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"shop\",\"fields\":["
            + "{\"name\":\"id\",\"type\":\"long\"},{\"name\":\"note\",\"type\":[\"null\",\"string\"],\"default\":null},"
            + "{\"name\":\"state\",\"type\":{\"type\":\"enum\",\"name\":\"State\",\"symbols\":[\"NEW\",\"DONE\"]}},"
            + "{\"name\":\"tags\",\"type\":{\"type\":\"array\",\"items\":\"string\"}},"
            + "{\"name\":\"marks\",\"type\":{\"type\":\"map\",\"values\":\"double\"}},"
            + "{\"name\":\"parent\",\"type\":[\"null\",\"Order\"]},{\"name\":\"raw\",\"type\":\"bytes\"},"
            + "{\"name\":\"small\",\"type\":\"float\"},{\"name\":\"on\",\"type\":\"boolean\"}]}";
        for (String json : List.of(
                "{\"id\":1,\"note\":null,\"state\":\"NEW\",\"tags\":[],\"marks\":{},\"parent\":null,\"raw\":\"\",\"small\":0.5,\"on\":true}",
                "{\"id\":-9223372036854775808,\"note\":{\"string\":\"ü\"},\"state\":\"DONE\",\"tags\":[\"a\",\"b\"],\"marks\":{\"x\":1.5},"
                + "\"parent\":{\"shop.Order\":{\"id\":2,\"note\":null,\"state\":\"NEW\",\"tags\":[],\"marks\":{},\"parent\":null,\"raw\":\"\\u00ff\",\"small\":1.0,\"on\":false}},"
                + "\"raw\":\"abc\",\"small\":-2.0,\"on\":false}")) {
            org.apache.avro.Schema schema = new org.apache.avro.Schema.Parser().parse(definition);
            Object datum = new GenericDatumReader<>(schema).read(null, DecoderFactory.get().jsonDecoder(schema, json));
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(out, null);
            new GenericDatumWriter<>(schema).write(datum, encoder);
            encoder.flush();
            row("avro", definition + "\u0001" + json, hex(out.toByteArray()));
        }
        row("primitive", "int32\u00014711", hex(Schema.INT32.encode(4711)));
        row("primitive", "int64\u0001-5", hex(Schema.INT64.encode(-5L)));
        row("primitive", "int8\u0001-5", hex(Schema.INT8.encode((byte) -5)));
        row("primitive", "double\u00010.1", hex(Schema.DOUBLE.encode(0.1)));
        row("primitive", "float\u00010.5", hex(Schema.FLOAT.encode(0.5f)));
        row("primitive", "boolean\u0001true", hex(Schema.BOOL.encode(true)));
        row("primitive", "string\u0001zwölf", hex(Schema.STRING.encode("zwölf")));
        System.exit(0);
    }

    static void KeyValueSchemaRows() {
        for (KeyValueEncodingType type : KeyValueEncodingType.values()) {
            Schema<KeyValue<String, byte[]>> schema = Schema.KeyValue(Schema.STRING, Schema.BYTES, type);
            SchemaInfo info = schema.getSchemaInfo();
            row("key-value-schema", type.name(), hex(info.getSchema()) + "\u0001" + new TreeMap<>(info.getProperties()));
            if (type == KeyValueEncodingType.INLINE)
                row("key-value", "k\u0001value", hex(schema.encode(new KeyValue<>("k", "value".getBytes()))));
        }
    }
}
