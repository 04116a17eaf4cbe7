import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.impl.MultiTopicsConsumerImpl;

/**
 * How long a consumer by pattern of the published Java client takes to hear of a new topic, when its namespace has
 * many others. Arguments: service URL, web URL, topics beforehand. Prints one line of milliseconds for each new topic.
 */
public class NewTopic {
    static final HttpClient HTTP = HttpClient.newHttpClient();

    static void create(String web, String name) throws Exception {
        URI uri = URI.create(web + "/admin/v2/persistent/public/default/" + name);
        HttpRequest request = HttpRequest.newBuilder(uri).PUT(HttpRequest.BodyPublishers.noBody()).build();
        int status = HTTP.send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
        if (status != 204) {
            throw new IllegalStateException(name + ": status " + status);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String web = arguments[1];
        int before = Integer.parseInt(arguments[2]);
        for (int number = 0; number < before; number++) {
            create(web, "orders-" + number);
        }
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        Consumer<byte[]> consumer = client.newConsumer()
                .topicsPattern(Pattern.compile("persistent://public/default/orders-.*"))
                .subscriptionName("s").receiverQueueSize(1).subscribe();
        MultiTopicsConsumerImpl<byte[]> topics = (MultiTopicsConsumerImpl<byte[]>) consumer;
        if (topics.getPartitions().size() != before) {
            throw new IllegalStateException("subscribed to " + topics.getPartitions().size() + " of " + before);
        }
        TimeUnit.SECONDS.sleep(1);
        List<Double> took = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            create(web, "orders-new-" + number);
            long created = System.nanoTime();
            while (topics.getPartitions().size() <= before + number) {
                TimeUnit.MICROSECONDS.sleep(200);
            }
            took.add((System.nanoTime() - created) / 1e6);
        }
        Collections.sort(took);
        System.out.printf("%d topics: subscribed to a new one after %.1f ms (median), %.1f ms (largest of %d)%n",
                before, took.get(took.size() / 2), took.get(took.size() - 1), took.size());
        client.close();
    }
}
