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
// less than half a second, and stopped at the end of the test. The end of its log is shown if the test failed.
package gemingatest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const logShown = 4000

// Broker is one that runs.
type Broker struct {
	ServiceURL string // pulsar://host:port
	WebURL     string // http://host:port
	t          testing.TB
	process    *exec.Cmd
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
	command := strings.Fields(os.Getenv("GEMINGA_COMMAND"))
	if len(command) == 0 {
		command = []string{"geminga"}
	}
	directory := t.TempDir()
	arguments := append(command[1:], "standalone", "--port", "0", "--web-port", "0", "--clock", "virtual", "--chaos",
		"--data-dir", filepath.Join(directory, "data"))
	for _, setting := range append([]string{"isDelayedDeliveryDeliverAtTimeStrict=true"}, settings...) {
		arguments = append(arguments, "--set", setting)
	}
	b := &Broker{t: t, log: filepath.Join(directory, "log"), process: exec.Command(command[0], arguments...)}
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
	return b
}

func (b *Broker) stop() {
	_ = b.process.Process.Signal(syscall.SIGTERM)
	_ = b.process.Wait()
	if b.t.Failed() {
		b.t.Logf("the end of the broker's log:\n%s", b.logEnd())
	}
}

func (b *Broker) logEnd() string {
	text, _ := os.ReadFile(b.log)
	return string(text[max(0, len(text)-logShown):])
}

// Topic is the full name of a topic.
func (b *Broker) Topic(name string) string { return "persistent://public/default/" + name }

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

// AdvanceTo moves the clock to a moment.
func (b *Broker) AdvanceTo(moment time.Time) Moved {
	b.t.Helper()
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
	path := "/geminga/delayed/persistent/public/default/" + topic + "/subscription/" + subscription + "/lose-bucket"
	b.ask("POST", path, map[string]any{}, nil)
}

// SetFault puts a rule in force (docs/faults.md), such as {"place": "wire", "kind": "latency", "latencyMs": 50}.
func (b *Broker) SetFault(rule map[string]any) {
	b.t.Helper()
	b.ask("POST", "/geminga/faults", rule, nil)
}

// ClearFaults ends all rules.
func (b *Broker) ClearFaults() {
	b.t.Helper()
	b.ask("DELETE", "/geminga/faults", nil, nil)
}

// Subscriptions of a topic, by name.
func (b *Broker) Subscriptions(topic string) map[string]Subscription {
	b.t.Helper()
	var stats struct{ Subscriptions map[string]Subscription }
	b.ask("GET", "/admin/v2/persistent/public/default/"+topic+"/stats", nil, &stats)
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
			b.t.Fatalf("not delivered within %s: %s", atMost, text)
		}
	}
}

func (b *Broker) ask(method, path string, body, answer any) {
	b.t.Helper()
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			b.t.Fatal(err)
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, b.WebURL+path, sent)
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode >= 300 {
		b.t.Fatalf("%s %s: %s: %s", method, path, response.Status, text)
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			b.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
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
