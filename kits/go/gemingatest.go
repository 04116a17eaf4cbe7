// Package gemingatest runs a Geminga broker for tests: copy this file into your module.
//
//	func TestAMonth(t *testing.T) {
//		broker := gemingatest.Start(t)
//		// subscribe and publish with broker.ServiceURL and broker.Topic("reminders") ...
//		broker.Advance("30d")
//	}
//
// The command `geminga` has to be on the path, or GEMINGA_COMMAND has to name it ("python3 -m geminga"). Each
// Start has a broker of its own on free ports, with a virtual clock and with faults allowed; it is ready in
// less than half a second, and stopped at the end of the test, or with its process, however that ends. The clock
// begins 20 years ahead of the machine's. The end of the broker's log is shown if the test failed.
//
// With GEMINGA_SERVICE_URL and GEMINGA_WEB_URL in the environment Start uses the broker there, which needs a virtual
// clock and, for faults, --chaos; beyond loopback also GEMINGA_OPERATOR_TOKEN, the broker's. Settings are those it was
// started with then, and its clock is shared: run packages and tests one after another (go test -p 1).
package gemingatest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const logShown = 4000

// 20 years, to the same day of the week: so a moment of the broker's clock is never one of the machine's.
const aheadMs = 1044 * 7 * 86_400_000

// Broker is one that runs.
type Broker struct {
	ServiceURL string // pulsar://host:port
	WebURL     string // http://host:port
	t          testing.TB
	namespace  string
	rules      []string
	process    *exec.Cmd // nil: it was not started here
	stdin      io.Closer // the broker stops when this process ends, which closes it
	log        string
}

// Moved says what a move of the clock did.
type Moved struct {
	FromMs         int64    `json:"from_ms"`
	ToMs           int64    `json:"to_ms"`
	Stops          int      `json:"stops"`
	Waiting        []string `json:"waiting"`
	Unacknowledged []string `json:"unacknowledged"`
	Unfinished     []string `json:"unfinished"`
}

// Subscription has the figures that Drain and AssertDelivered go by.
type Subscription struct {
	MsgBacklog      int64 `json:"msgBacklog"`
	MsgDelayed      int64 `json:"msgDelayed"`
	UnackedMessages int64 `json:"unackedMessages"`
}

// Start runs a broker until the end of the test. Settings are keys of broker.conf: "key=value".
func Start(t testing.TB, settings ...string) *Broker {
	t.Helper()
	b := &Broker{t: t, ServiceURL: os.Getenv("GEMINGA_SERVICE_URL"), WebURL: strings.TrimSuffix(os.Getenv("GEMINGA_WEB_URL"), "/")}
	switch {
	case (b.ServiceURL == "") != (b.WebURL == ""):
		t.Fatal("set both GEMINGA_SERVICE_URL and GEMINGA_WEB_URL, or neither")
	case b.ServiceURL == "":
		b.start(settings)
	}
	var shown struct {
		NowMs  int64 `json:"now_ms"`
		WallMs int64 `json:"wall_ms"`
	}
	b.ask("GET", "/geminga/clock", nil, &shown)
	if missing := aheadMs - (shown.NowMs - shown.WallMs); missing > 0 {
		b.move(map[string]any{"ms": missing})
	}
	// A broker that goes on running has the namespaces of earlier runs.
	b.namespace = fmt.Sprintf("public/test-%016x", rand.Uint64())
	b.ask("PUT", "/admin/v2/namespaces/"+b.namespace, map[string]any{}, nil)
	if b.process == nil {
		t.Cleanup(b.clean)
	}
	return b
}

func (b *Broker) start(settings []string) {
	t := b.t
	t.Helper()
	command := strings.Fields(os.Getenv("GEMINGA_COMMAND"))
	if len(command) == 0 {
		command = []string{"geminga"}
	}
	directory := t.TempDir()
	arguments := append(command[1:], "standalone", "--port", "0", "--web-port", "0", "--clock", "virtual", "--chaos",
		"--stop-with-stdin", "--data-dir", filepath.Join(directory, "data"))
	for _, setting := range append([]string{"isDelayedDeliveryDeliverAtTimeStrict=true"}, settings...) {
		arguments = append(arguments, "--set", setting)
	}
	b.log, b.process = filepath.Join(directory, "log"), exec.Command(command[0], arguments...)
	log, err := os.Create(b.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	b.process.Stderr = log
	out, err := b.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if b.stdin, err = b.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := b.process.Start(); err != nil {
		t.Fatalf("the command geminga cannot be run (put it on the path, or set GEMINGA_COMMAND): %v", err)
	}
	t.Cleanup(b.stop)
	var ready struct{ Binary, Web string }
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("the broker ended before it was ready:\n%s", b.logEnd())
	}
	b.ServiceURL, b.WebURL = ready.Binary, ready.Web
}

func (b *Broker) stop() {
	_ = b.stdin.Close()
	_ = b.process.Wait()
	if b.t.Failed() {
		b.t.Logf("the end of the broker's log:\n%s", b.logEnd())
	}
}

// Ends the faults of the test and deletes its topics, on a broker that goes on running.
func (b *Broker) clean() {
	for _, rule := range b.rules {
		b.quietly("DELETE", "/geminga/faults/rules/"+rule)
	}
	b.rules = nil
	// The partitions of a topic go with it, so they are not in the second list.
	for _, list := range [][2]string{{"/partitioned", "/partitions"}, {"", ""}} {
		var topics []string
		_ = json.Unmarshal(b.quietly("GET", "/admin/v2/persistent/"+b.namespace+list[0]), &topics)
		for _, topic := range topics {
			name := strings.TrimPrefix(topic, "persistent://"+b.namespace+"/")
			b.quietly("DELETE", b.path(name)+list[1]+"?force=true")
		}
	}
	b.quietly("DELETE", "/admin/v2/namespaces/"+b.namespace)
}

func (b *Broker) quietly(method, path string) []byte {
	text, err := b.request(method, path, nil)
	if err != nil {
		b.t.Logf("after the test: %v", err)
	}
	return text
}

func (b *Broker) logEnd() string {
	text, _ := os.ReadFile(b.log)
	return string(text[max(0, len(text)-logShown):])
}

// Topic is the full name of a topic that no other test uses.
func (b *Broker) Topic(name string) string { return "persistent://" + b.namespace + "/" + name }

func (b *Broker) path(topic string) string {
	return "/admin/v2/persistent/" + b.namespace + "/" + url.PathEscape(topic)
}

// Now is what the broker's clock shows.
func (b *Broker) Now() time.Time {
	b.t.Helper()
	var shown struct {
		NowMs int64 `json:"now_ms"`
	}
	b.ask("GET", "/geminga/clock", nil, &shown)
	return time.UnixMilli(shown.NowMs)
}

// Advance moves the clock by a length such as "30d" or "1h30m". On return all that fell due has happened, in due
// order: each due message is with its consumer, or waits for one.
func (b *Broker) Advance(length string) Moved {
	b.t.Helper()
	ms, err := milliseconds(length)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.move(map[string]any{"ms": ms})
}

// AdvanceUntilAcknowledged is Advance that waits at each due time until consumers have acknowledged what they got.
func (b *Broker) AdvanceUntilAcknowledged(length string) Moved {
	b.t.Helper()
	ms, err := milliseconds(length)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.move(map[string]any{"ms": ms, "wait": "acknowledged"})
}

// AdvanceTo moves the clock to a moment of it, which is none of the machine's clock.
func (b *Broker) AdvanceTo(moment time.Time) Moved {
	b.t.Helper()
	if now := b.Now(); moment.Before(now) {
		b.t.Fatalf("%v is in the past: the broker's clock shows %v and never goes back. "+
			"Count from Now of the broker, not from the machine's clock", moment.UTC(), now.UTC())
	}
	return b.move(map[string]any{"to_ms": moment.UnixMilli()})
}

// AdvanceToNext moves the clock to when the next delayed message is due.
func (b *Broker) AdvanceToNext() Moved {
	b.t.Helper()
	return b.move(map[string]any{"next": true})
}

func (b *Broker) move(body map[string]any) (moved Moved) {
	b.t.Helper()
	b.ask("POST", "/geminga/clock", body, &moved)
	if len(moved.Unacknowledged) > 0 {
		b.t.Fatalf("not acknowledged within 30 s of a due time: %v", moved.Unacknowledged)
	}
	return moved
}

// LoseBucket deletes a bucket of the delayed index, and has the broker rebuild it.
func (b *Broker) LoseBucket(topic, subscription string) {
	b.t.Helper()
	path := "/geminga/delayed/persistent/" + b.namespace + "/" + url.PathEscape(topic)
	b.ask("POST", path+"/subscription/"+url.PathEscape(subscription)+"/lose-bucket", map[string]any{}, nil)
}

// SetFault puts a rule in force (docs/faults.md), such as {"place": "wire", "kind": "latency", "latencyMs": 50}.
func (b *Broker) SetFault(rule map[string]any) {
	b.t.Helper()
	var made struct{ Rule struct{ ID string } }
	b.ask("POST", "/geminga/faults", rule, &made)
	b.rules = append(b.rules, made.Rule.ID)
}

// ClearFaults ends the rules of this test.
func (b *Broker) ClearFaults() {
	b.t.Helper()
	for ; len(b.rules) > 0; b.rules = b.rules[1:] {
		b.ask("DELETE", "/geminga/faults/rules/"+b.rules[0], nil, nil)
	}
}

// Subscriptions of a topic, by name; each over all partitions, if the topic has any.
func (b *Broker) Subscriptions(topic string) map[string]Subscription {
	b.t.Helper()
	var found struct{ Partitions int }
	b.ask("GET", b.path(topic)+"/partitions", nil, &found)
	what := "/stats"
	if found.Partitions > 0 {
		what = "/partitioned-stats?perPartition=false"
	}
	var stats struct{ Subscriptions map[string]Subscription }
	b.ask("GET", b.path(topic)+what, nil, &stats)
	return stats.Subscriptions
}

// Drain waits until all that may be delivered now is acknowledged on all subscriptions of a topic; messages that
// are not due yet do not count.
func (b *Broker) Drain(topic string, atMost time.Duration) {
	b.t.Helper()
	b.until(atMost, func() string {
		for name, found := range b.Subscriptions(topic) {
			if found.MsgBacklog > found.MsgDelayed || found.UnackedMessages > 0 {
				return fmt.Sprintf("%s / %s: %+v", topic, name, found)
			}
		}
		return ""
	})
}

// AssertDelivered fails the test unless all that was published is acknowledged.
func (b *Broker) AssertDelivered(topic, subscription string, atMost time.Duration) {
	b.t.Helper()
	b.until(atMost, func() string {
		found, ok := b.Subscriptions(topic)[subscription]
		if !ok || found.MsgBacklog > 0 {
			return fmt.Sprintf("%s / %s: %+v", topic, subscription, found)
		}
		return ""
	})
}

func (b *Broker) until(atMost time.Duration, waits func() string) {
	b.t.Helper()
	for ends := time.Now().Add(atMost); ; time.Sleep(10 * time.Millisecond) {
		text := waits()
		if text == "" {
			return
		}
		if time.Now().After(ends) {
			var shown struct {
				NextDueMs *int64 `json:"next_due_ms"`
			}
			if b.ask("GET", "/geminga/clock", nil, &shown); shown.NextDueMs != nil {
				text += "; the broker's next message is due " + time.UnixMilli(*shown.NextDueMs).UTC().Format(time.RFC3339)
			}
			b.t.Fatalf("not delivered within %s: %s", atMost, text)
		}
	}
}

func (b *Broker) ask(method, path string, body, answer any) {
	b.t.Helper()
	text, err := b.request(method, path, body)
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
}

func (b *Broker) request(method, path string, body any) ([]byte, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, b.WebURL+path, sent)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("GEMINGA_OPERATOR_TOKEN"); token != "" && strings.HasPrefix(path, "/geminga/") {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return text, err
}

var (
	unitsMs = map[string]float64{
		"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
		"w": 604_800_000, "y": 31_536_000_000,
	}
	part     = regexp.MustCompile(`(?i)(\d+\.?\d*|\.\d+)\s*(ms|s|min|m|h|d|w|y)\s*`)
	duration = regexp.MustCompile(`^(?:` + part.String() + `)+$`)
	bare     = regexp.MustCompile(`^(?:\d+\.?\d*|\.\d+)$`)
)

// Takes what geminga's commands take: 250ms, 1.5h, 1h30m, 2d, 1w; a number without a unit is seconds.
func milliseconds(length string) (int64, error) {
	text := strings.TrimSpace(length)
	if bare.MatchString(text) {
		text += "s"
	}
	if !duration.MatchString(text) {
		return 0, errors.New("expected a duration such as 250ms, 2s, 90m, 1h30m, 2d or 1w, not " + length)
	}
	var total float64
	for _, found := range part.FindAllStringSubmatch(text, -1) {
		number, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return 0, err
		}
		total += number * unitsMs[strings.ToLower(found[2])]
	}
	return int64(total + 0.5), nil
}
