package gemingatest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

type kit struct {
	*Broker
	t        *testing.T
	client   pulsar.Client
	consumer pulsar.Consumer
	producer pulsar.Producer
}

func start(t *testing.T, settings ...string) *kit {
	t.Helper()
	if len(settings) > 0 && os.Getenv("GEMINGA_SERVICE_URL") != "" {
		t.Skip("needs a broker with settings of its own")
	}
	quiet := logrus.New()
	quiet.SetLevel(logrus.PanicLevel)
	k := &kit{Broker: Start(t, settings...), t: t}
	var err error
	k.client, err = pulsar.NewClient(pulsar.ClientOptions{URL: k.ServiceURL, Logger: plog.NewLoggerWithLogrus(quiet)})
	check(t, err)
	t.Cleanup(k.client.Close)
	k.consumer, err = k.client.Subscribe(pulsar.ConsumerOptions{Topic: k.Topic("r"), SubscriptionName: "app", Type: pulsar.Shared})
	check(t, err)
	k.producer, err = k.client.CreateProducer(pulsar.ProducerOptions{Topic: k.Topic("r")})
	check(t, err)
	return k
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (k *kit) send(text string, delay time.Duration) {
	k.t.Helper()
	_, err := k.producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(text), DeliverAfter: delay})
	check(k.t, err)
}

func (k *kit) receive() string {
	k.t.Helper()
	ends, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	message, err := k.consumer.Receive(ends)
	check(k.t, err)
	check(k.t, k.consumer.Ack(message))
	return string(message.Payload())
}

func (k *kit) expect(text string) {
	k.t.Helper()
	if got := k.receive(); got != text {
		k.t.Fatalf("got %q, not %q", got, text)
	}
}

const day = 24 * time.Hour

func TestAMonth(t *testing.T) {
	k := start(t)
	k.send("renew", 30*day)
	k.Advance("30d")
	k.expect("renew")
	k.AssertDelivered("r", "app", 5*time.Second)
}

func TestDueOrder(t *testing.T) {
	k := start(t)
	k.send("year", 365*day)
	k.send("month", 30*day)
	k.send("soon", 2*time.Second)
	k.Advance("366d")
	for _, text := range []string{"soon", "month", "year"} {
		k.expect(text)
	}
}

func TestToTheNext(t *testing.T) {
	k := start(t)
	before := k.Now()
	k.send("later", 3*day)
	time.Sleep(100 * time.Millisecond) // the dispatcher reads what was published
	k.AdvanceToNext()
	k.expect("later")
	if moved := k.Now().Sub(before); moved < 3*day || moved > 3*day+time.Minute {
		t.Fatal(moved)
	}
}

func TestToAMoment(t *testing.T) {
	k := start(t)
	k.send("later", day)
	k.AdvanceTo(k.Now().Add(day + time.Minute))
	k.expect("later")
}

func TestAChain(t *testing.T) {
	k := start(t)
	k.send("0", time.Hour)
	done := make(chan int)
	go func() {
		for number := 0; number < 5; number++ {
			message, err := k.consumer.Receive(context.Background())
			if err != nil || string(message.Payload()) != fmt.Sprint(number) {
				break
			}
			k.send(fmt.Sprint(number+1), time.Hour)
			_ = k.consumer.Ack(message)
			if number == 4 {
				done <- number
			}
		}
		close(done)
	}()
	k.AdvanceUntilAcknowledged("5h30m")
	if <-done != 4 {
		t.Fatal("the chain broke")
	}
}

func TestDrainLeavesWhatIsNotDue(t *testing.T) {
	k := start(t)
	k.send("now", 0)
	k.send("later", day)
	k.expect("now")
	k.Drain("r", 5*time.Second)
	if left := k.Subscriptions("r")["app"].MsgBacklog; left != 1 {
		t.Fatal(left)
	}
}

func TestTTL(t *testing.T) {
	k := start(t, "ttlDurationDefaultInSeconds=864000")
	k.send("month", 30*day)
	k.send("week", 7*day)
	k.Advance("31d")
	k.expect("week")
	k.AssertDelivered("r", "app", 5*time.Second)
}

func TestALostBucket(t *testing.T) {
	k := start(t, "delayedDeliveryMinIndexCountPerBucket=20", "managedLedgerMaxEntriesPerLedger=20",
		"managedLedgerMinLedgerRolloverTimeMinutes=0",
		"delayedDeliveryTrackerFactoryClassName=org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory")
	for number := 0; number < 100; number++ {
		k.send(fmt.Sprint(number), day)
	}
	k.LoseBucket("r", "app")
	k.Advance("2d")
	found := map[string]bool{}
	for len(found) < 100 {
		found[k.receive()] = true
	}
	k.AssertDelivered("r", "app", 5*time.Second)
}

func TestAPartitionedTopic(t *testing.T) {
	k := start(t)
	path := strings.Replace(k.Topic("parted"), "://", "/", 1) + "/partitions"
	request, err := http.NewRequest("PUT", k.WebURL+"/admin/v2/"+path, strings.NewReader("3"))
	check(t, err)
	response, err := http.DefaultClient.Do(request)
	check(t, err)
	if response.StatusCode != 204 {
		t.Fatal(response.Status)
	}
	consumer, err := k.client.Subscribe(pulsar.ConsumerOptions{Topic: k.Topic("parted"), SubscriptionName: "app", Type: pulsar.Shared})
	check(t, err)
	producer, err := k.client.CreateProducer(pulsar.ProducerOptions{Topic: k.Topic("parted")})
	check(t, err)
	for number := range 9 {
		_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("m"), Key: fmt.Sprint(number), DeliverAfter: day})
		check(t, err)
	}
	if found := k.Subscriptions("parted")["app"]; found.MsgBacklog != 9 {
		t.Fatal(found)
	}
	k.Drain("parted", 5*time.Second)
	k.Advance("1d")
	for range 9 {
		ends, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		message, err := consumer.Receive(ends)
		cancel()
		check(t, err)
		check(t, consumer.Ack(message))
	}
	k.AssertDelivered("parted", "app", 5*time.Second)
}

// Both clocks, as the first thing that a broker sees and after moves.
func TestAbsoluteTimes(t *testing.T) {
	k := start(t)
	for range 2 {
		for _, clock := range []func() time.Time{time.Now, k.Now} {
			now := k.Now()
			_, err := k.producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("m"), DeliverAt: clock().Add(time.Hour)})
			check(t, err)
			k.AdvanceTo(now.Add(59 * time.Minute))
			early, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			if message, err := k.consumer.Receive(early); err == nil {
				t.Fatalf("%s came early", message.Payload())
			}
			cancel()
			k.AdvanceTo(now.Add(61 * time.Minute))
			k.expect("m")
		}
		k.Advance("400d")
	}
}

// Keeps what fails the test that it stands for.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, arguments ...any) {
	f.said = fmt.Sprintf(format, arguments...)
	runtime.Goexit()
}

func TestAMomentOfTheMachinesClockIsNoneToAdvanceTo(t *testing.T) {
	f := &failing{TB: t}
	broker := Start(f)
	done := make(chan bool)
	go func() {
		defer close(done)
		broker.AdvanceTo(time.Now().Add(day))
	}()
	<-done
	if !strings.Contains(f.said, "Count from Now of the broker") {
		t.Fatal(f.said)
	}
}

func TestNothingIsLeftOnABrokerThatGoesOn(t *testing.T) {
	k := start(t)
	request, err := http.NewRequest("PUT", k.WebURL+k.path("parted")+"/partitions", strings.NewReader("3"))
	check(t, err)
	_, err = http.DefaultClient.Do(request)
	check(t, err)
	k.SetFault(map[string]any{"place": "wire", "kind": "latency", "latencyMs": 1})
	k.clean()
	for path, left := range map[string]string{"/admin/v2/namespaces/public": k.namespace, "/geminga/faults": `"f`} {
		text, err := k.request("GET", path, nil)
		check(t, err)
		if strings.Contains(string(text), left) {
			t.Fatal(string(text))
		}
	}
}

func TestASlowWire(t *testing.T) {
	k := start(t)
	k.SetFault(map[string]any{"place": "wire", "kind": "latency", "latencyMs": 50, "command": "SEND"})
	began := time.Now()
	k.send("slow", 0)
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Fatal(took)
	}
	k.ClearFaults()
	k.expect("slow")
}

func TestLengths(t *testing.T) {
	for text, ms := range map[string]int64{"250ms": 250, "2s": 2000, "1h30m": 5_400_000, "30d": 2_592_000_000, "1.5h": 5_400_000, "2D": 172_800_000, "1w": 604_800_000, "15min": 900_000, "30": 30_000} {
		if found, err := milliseconds(text); err != nil || found != ms {
			t.Fatal(text, found, err)
		}
	}
	for _, text := range []string{"", "soon", "5 fortnights", "1d later"} {
		if found, err := milliseconds(text); err == nil {
			t.Fatal(text, found)
		}
	}
}
