// The load generator of bench/side_by_side.py, on the official Go client: one phase per run.
//
// It prints a JSON line {"event":"begin"} once it is connected and {"event":"end",...} once the phase is over, so that
// whoever started it can look at the broker's counters in between. Any failure, or more than -timeout, ends it with a
// reason on stderr and a non-zero code.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

var (
	url          = flag.String("url", "pulsar://localhost:6650", "broker")
	phase        = flag.String("phase", "", "subscribe, publish, drain, live, latency, delayed or roundtrip")
	topic        = flag.String("topic", "", "topic")
	subscription = flag.String("subscription", "bench", "subscription")
	kind         = flag.String("type", "shared", "subscription type: exclusive, shared, failover or key_shared")
	count        = flag.Int("count", 10_000, "messages")
	size         = flag.Int("size", 1024, "payload bytes, at least 16")
	batched      = flag.Bool("batched", false, "let the producer batch")
	rate         = flag.Int("rate", 500, "messages per second of the latency and the delayed phase")
	delay        = flag.Duration("delay", 2*time.Second, "delay of the delayed phase's messages")
	delayMax     = flag.Duration("delay-max", 0, "if longer: delays are random, from -delay up to this")
	timeout      = flag.Duration("timeout", time.Minute, "longest time that the phase may take")
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go client:", err)
		os.Exit(1)
	}
}

func report(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	fail(json.NewEncoder(os.Stdout).Encode(line))
}

func connect() pulsar.Client {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: *url, Logger: log.DefaultNopLogger(), OperationTimeout: 20 * time.Second,
	})
	fail(err)
	return client
}

func subscribe(client pulsar.Client) pulsar.Consumer {
	types := map[string]pulsar.SubscriptionType{
		"exclusive": pulsar.Exclusive, "shared": pulsar.Shared,
		"failover": pulsar.Failover, "key_shared": pulsar.KeyShared,
	}
	options := pulsar.ConsumerOptions{
		Topic: *topic, SubscriptionName: *subscription, Type: types[*kind],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	if *phase == "roundtrip" {
		options.AckGroupingOptions = &pulsar.AckGroupingOptions{MaxSize: 1} // each goes out at once
	}
	consumer, err := client.Subscribe(options)
	fail(err)
	return consumer
}

func produce(client pulsar.Client) pulsar.Producer {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: *topic, DisableBatching: !*batched, SendTimeout: *timeout,
	})
	fail(err)
	return producer
}

// message holds the time of sending and its number, so that a receiver knows its age and whether it came twice.
func message(number int, now time.Time) *pulsar.ProducerMessage {
	payload := make([]byte, *size)
	binary.BigEndian.PutUint64(payload, uint64(now.UnixNano()))
	binary.BigEndian.PutUint64(payload[8:], uint64(number))
	return &pulsar.ProducerMessage{Payload: payload}
}

// publish sends count messages as fast as the client allows and returns once all are acknowledged.
func publish(producer pulsar.Producer) time.Duration {
	var pending sync.WaitGroup
	pending.Add(*count)
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		fail(err)
		pending.Done()
	}
	started := time.Now()
	for number := range *count {
		producer.SendAsync(context.Background(), message(number, started), done)
	}
	fail(producer.Flush())
	pending.Wait()
	return time.Since(started)
}

// receive acknowledges until count different messages have come; returns the time of the last one and the ages.
func receive(consumer pulsar.Consumer, keepAges bool) (time.Time, []time.Duration, int) {
	seen := make([]bool, *count)
	ages := make([]time.Duration, 0)
	duplicates := 0
	for left := *count; left > 0; {
		received := <-consumer.Chan()
		payload := received.Payload()
		if keepAges {
			sent := time.Unix(0, int64(binary.BigEndian.Uint64(payload)))
			ages = append(ages, time.Since(sent))
		}
		number := binary.BigEndian.Uint64(payload[8:])
		if seen[number] {
			duplicates++
		} else {
			seen[number] = true
			left--
		}
		fail(consumer.Ack(received.Message))
	}
	return time.Now(), ages, duplicates
}

func drain(client pulsar.Client) {
	report("begin", nil)
	started := time.Now()
	consumer := subscribe(client)
	last, _, duplicates := receive(consumer, false)
	consumer.Close() // sends the acknowledgements that are still held back
	report("end", map[string]any{
		"messages": *count, "seconds": last.Sub(started).Seconds(), "duplicates": duplicates,
	})
}

// live publishes and consumes at the same time, each on a connection of its own.
func live(client pulsar.Client) {
	consumer := subscribe(client)
	publisher := connect()
	producer := produce(publisher)
	report("begin", nil)
	started := time.Now()
	go publish(producer)
	last, _, duplicates := receive(consumer, false)
	consumer.Close()
	report("end", map[string]any{
		"messages": *count, "seconds": last.Sub(started).Seconds(), "duplicates": duplicates,
	})
}

func percentiles(name string, values []time.Duration, fields map[string]any) {
	slices.Sort(values)
	at := func(share float64) float64 {
		return float64(values[int(share*float64(len(values)-1))].Microseconds()) / 1000
	}
	fields[name+"_p50_ms"], fields[name+"_p99_ms"], fields[name+"_max_ms"] = at(0.5), at(0.99), at(1)
	fields[name+"_p999_ms"] = at(0.999)
}

// latency publishes at a fixed low rate, whatever the answers' pace, and takes the times of receipts and deliveries.
func latency(client pulsar.Client) {
	consumer := subscribe(client)
	publisher := connect()
	producer := produce(publisher)
	report("begin", nil)
	receipts := make([]time.Duration, *count)
	var pending atomic.Int64
	pending.Store(int64(*count))
	go func() {
		started := time.Now()
		for number := range *count {
			due := started.Add(time.Duration(number) * time.Second / time.Duration(*rate))
			time.Sleep(time.Until(due))
			sent := time.Now()
			producer.SendAsync(context.Background(), message(number, sent),
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					fail(err)
					receipts[number] = time.Since(sent)
					pending.Add(-1)
				})
		}
	}()
	_, ages, duplicates := receive(consumer, true)
	fail(producer.Flush())
	if pending.Load() != 0 {
		fail(fmt.Errorf("%d messages without a receipt", pending.Load()))
	}
	consumer.Close()
	fields := map[string]any{"messages": *count, "duplicates": duplicates}
	percentiles("publish", receipts, fields)
	percentiles("end_to_end", ages, fields)
	report("end", fields)
}

// delayed publishes at a fixed rate, each message to be delivered after -delay, and takes how far off that time it came.
func delayed(client pulsar.Client) {
	consumer := subscribe(client)
	publisher := connect()
	producer := produce(publisher)
	report("begin", nil)
	receipts := make([]time.Duration, *count)
	var pending sync.WaitGroup
	pending.Add(*count)
	go func() {
		started := time.Now()
		for number := range *count {
			time.Sleep(time.Until(started.Add(time.Duration(number) * time.Second / time.Duration(*rate))))
			// The protocol's times are whole milliseconds.
			sent := time.Now()
			wait := *delay
			if *delayMax > *delay {
				wait += time.Duration(rand.Int64N(int64(*delayMax - *delay)))
			}
			due := time.UnixMilli(sent.Add(wait).UnixMilli())
			delayedMessage := message(number, due)
			delayedMessage.DeliverAt = due
			producer.SendAsync(context.Background(), delayedMessage,
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					fail(err)
					receipts[number] = time.Since(sent)
					pending.Done()
				})
		}
	}()
	_, ages, duplicates := receive(consumer, true)
	consumer.Close()
	early := make([]time.Duration, len(ages))
	late := make([]time.Duration, len(ages))
	off := make([]time.Duration, len(ages))
	for index, age := range ages {
		early[index], late[index], off[index] = max(-age, 0), max(age, 0), max(age, -age)
	}
	pending.Wait()
	fields := map[string]any{"messages": *count, "duplicates": duplicates}
	percentiles("publish", receipts, fields)
	percentiles("delayed_early", early, fields)
	percentiles("delayed_late", late, fields)
	percentiles("delayed_off", off, fields)
	report("end", fields)
}

// roundtrip publishes a message, receives and acknowledges it, before it publishes the next one.
func roundtrip(client pulsar.Client) {
	consumer := subscribe(client)
	publisher := connect()
	producer := produce(publisher)
	receipts := make([]time.Duration, *count)
	trips := make([]time.Duration, *count)
	report("begin", nil)
	for number := range *count {
		sent := time.Now()
		_, err := producer.Send(context.Background(), message(number, sent))
		fail(err)
		receipts[number] = time.Since(sent)
		received := <-consumer.Chan()
		trips[number] = time.Since(sent)
		fail(consumer.Ack(received.Message))
	}
	consumer.Close()
	fields := map[string]any{"messages": *count, "duplicates": 0}
	percentiles("publish", receipts, fields)
	percentiles("end_to_end", trips, fields)
	report("end", fields)
}

func main() {
	flag.Parse()
	time.AfterFunc(*timeout, func() { fail(fmt.Errorf("phase %s took longer than %s", *phase, *timeout)) })
	client := connect()
	switch *phase {
	case "subscribe":
		report("begin", nil)
		subscribe(client).Close()
		report("end", nil)
	case "publish":
		producer := produce(client)
		report("begin", nil)
		elapsed := publish(producer)
		report("end", map[string]any{"messages": *count, "seconds": elapsed.Seconds()})
	case "drain":
		drain(client)
	case "live":
		live(client)
	case "latency":
		latency(client)
	case "delayed":
		delayed(client)
	case "roundtrip":
		roundtrip(client)
	default:
		fail(fmt.Errorf("no phase %q", *phase))
	}
	// The process ends without closing its connections one by one: the broker must cope with that too.
}
