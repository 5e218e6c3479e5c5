package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/redrive-go/redrive/brokers"
)

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		delay time.Duration
		names string
		last  time.Duration
	}{
		{0, "1m", time.Minute},
		{30 * time.Second, "1m", time.Minute},
		{time.Minute, "1m", time.Minute},
		{10 * time.Minute, "1m 15m", 15 * time.Minute},
		{2 * time.Hour, "1m 15m 3h", 3 * time.Hour},
		{30 * time.Hour, "1m 15m 3h 24h", 30 * time.Hour},
	} {
		o := Options{}.withDefaults()
		p, err := o.plan(brokers.Subscription{Group: "g", Topics: []string{"b", "a", "b"}, MaxDelay: tt.delay, DeadLetters: map[string]string{"a": "d", "b": "d"}})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range p.delays {
			names = append(names, strings.TrimPrefix(d.name, "redrive.delay.v1.g."))
		}
		if got := strings.Join(names, " "); got != tt.names || p.delays[len(p.delays)-1].longest != tt.last {
			t.Errorf("delays of up to %v: %q, the last for %v; want %q, the last for %v", tt.delay, got, p.delays[len(p.delays)-1].longest, tt.names, tt.last)
		}
		if !slices.Equal(p.topics, []string{"a", "b"}) || !slices.Equal(p.dead, []string{"d"}) || len(p.consumed()) != 2+len(p.delays) {
			t.Errorf("plan %+v", p)
		}
	}
}

func TestPick(t *testing.T) {
	o := Options{Prefix: "p"}.withDefaults()
	p, err := o.plan(brokers.Subscription{Group: "g", Topics: []string{"a"}, MaxDelay: 30 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for delay, want := range map[time.Duration]string{
		-1: "1m", 0: "1m", time.Minute: "1m", time.Minute + 1: "15m", 15 * time.Minute: "15m", 3 * time.Hour: "3h",
		3*time.Hour + 1: "24h", 24*time.Hour + 1: "24h", 1000 * time.Hour: "24h",
	} {
		if got := p.pick(delay); got != "p.delay.v1.g."+want {
			t.Errorf("a delay of %v goes to %q, want %s", delay, got, want)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	topics := []string{"orders"}
	for name, tt := range map[string]struct {
		sub   brokers.Subscription
		wants []string
	}{
		"no group":       {brokers.Subscription{Topics: topics}, []string{"no group", "Options.Group"}},
		"no topic":       {brokers.Subscription{Group: "g"}, []string{"no topic"}},
		"group's name":   {brokers.Subscription{Group: "a b", Topics: topics, MaxAttempts: 1}, []string{`"a b"`, "letters"}},
		"topic's name":   {brokers.Subscription{Group: "g", Topics: []string{"a/b", ".."}}, []string{`"a/b"`, `".."`, "letters"}},
		"dead letters":   {brokers.Subscription{Group: "g", Topics: topics, DeadLetters: map[string]string{"orders": "ü"}}, []string{`"ü"`}},
		"empty name":     {brokers.Subscription{Group: "g", Topics: []string{""}}, []string{`""`}},
		"group too long": {brokers.Subscription{Group: strings.Repeat("g", 229), Topics: topics, MaxAttempts: 1}, []string{"longest has 249", "shorten"}},
	} {
		_, err := Options{}.withDefaults().plan(tt.sub)
		if !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("%s: %v, want ErrMisconfigured", name, err)
			continue
		}
		for _, want := range tt.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
	longest := brokers.Subscription{Group: strings.Repeat("g", 228), Topics: []string{strings.Repeat("t", longestName)}, MaxAttempts: 1}
	if _, err := (Options{}).withDefaults().plan(longest); err != nil {
		t.Errorf("the longest names: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := New(Options{Prefix: "a/b", SessionTimeout: 100*time.Millisecond - 1, RebalanceTimeout: time.Second - 1, CallTimeout: -1, DelayPartitions: -1, Replication: -2, MessageLimit: -3, MaxDecompressed: -4})
	if !errors.Is(err, brokers.ErrMisconfigured) {
		t.Fatalf("New: %v", err)
	}
	for _, want := range []string{"Brokers", "SessionTimeout", "RebalanceTimeout", "CallTimeout", "DelayPartitions", "Replication", "MessageLimit", "MaxDecompressed", "Prefix"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if _, err := New(Options{Brokers: []string{"localhost:9092"}, SessionTimeout: 100 * time.Millisecond, RebalanceTimeout: time.Second, CallTimeout: 1}); err != nil {
		t.Errorf("the least that is allowed: %v", err)
	}
	for o, want := range map[[2]int]int{{0, 0}: 16 << 20, {0, 1_048_588}: 16_777_408, {0, 1000}: 16 << 20, {5, 1_048_588}: 5} {
		if got := (Options{MaxDecompressed: o[0]}).decompressed(o[1]); got != want {
			t.Errorf("MaxDecompressed %d, max.message.bytes %d: %d, want %d", o[0], o[1], got, want)
		}
	}
	for session, want := range map[time.Duration]time.Duration{time.Second: time.Second / 5, 15 * time.Second: 3 * time.Second, time.Hour: 3 * time.Second} {
		if got := heartbeatPace(Options{SessionTimeout: session}); got != want {
			t.Errorf("a heartbeat every %v in sessions of %v, want %v", got, session, want)
		}
	}
	if _, err := New(Options{Brokers: []string{"localhost"}}); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("an address without a port: %v", err)
	}
}

type scram struct{ plain.Mechanism }

func (scram) Name() string { return "SCRAM-SHA-512" }

// A password goes over no connection that others can read, and into no error.
func TestAttackLoginInPlainText(t *testing.T) {
	login := plain.Mechanism{Username: "u", Password: "pa55"}
	hashed := scram{login}
	remote := []string{"kafka-1.shop.example:9092"}
	local := []string{"localhost:9092", "127.0.0.1:9093", "[::1]:9094"}
	for name, tt := range map[string]struct {
		options Options
		refused bool
	}{
		"plain":               {Options{Brokers: remote, SASL: login}, true},
		"one of them":         {Options{Brokers: append(local, remote...), SASL: login}, true},
		"with TLS":            {Options{Brokers: remote, SASL: login, TLS: &tls.Config{}}, false},
		"allowed":             {Options{Brokers: remote, SASL: login, AllowPlaintext: true}, false},
		"this machine":        {Options{Brokers: local, SASL: login}, false},
		"no password is sent": {Options{Brokers: remote, SASL: hashed}, false},
		"no login":            {Options{Brokers: remote}, false},
	} {
		b, err := New(tt.options)
		if refused := errors.Is(err, brokers.ErrMisconfigured); refused != tt.refused || refused && !strings.Contains(err.Error(), "AllowPlaintext") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "pa55") {
			t.Errorf("%s: %q tells the password", name, err)
		}
		if b != nil {
			b.Close(t.Context())
		}
	}
	for _, address := range []string{"u:pa55@h:9092", "u:pa55@h", "kafka://u:pa55@h:9092", "kafka://h:9092/?password=pa55", "pa55@h:9092", "u:pa@55@h:9092"} {
		if _, err := New(Options{Brokers: []string{address}}); !errors.Is(err, brokers.ErrMisconfigured) || strings.Contains(err.Error(), "55") || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// A cluster that is away is named as in Options, and not by topics that its
// user never heard of.
func TestOpenWithoutABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
		b, err := New(Options{Brokers: []string{"one:9092", "two:9092"}, Dial: refuse, Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close(t.Context())
		_, err = b.Open(t.Context(), brokers.Subscription{Topics: []string{"orders"}, MaxDelay: time.Minute})
		if text := fmt.Sprint(err); !errors.Is(err, syscall.ECONNREFUSED) ||
			!strings.HasPrefix(text, `kafka: open ["orders"]: ask the brokers at one:9092, two:9092 about topics: `) || strings.Contains(text, "delay") {
			t.Errorf("Open: %v", err)
		}
	})
}

// Without a coordinator, as on a fresh cluster, a group waits for a while before
// it complains.
func TestJoinWithoutACoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := withoutCoordinator(t)
		defer src.broker.Close(t.Context())
		defer src.Close(t.Context())
		began := time.Now()
		_, err := src.Receive(t.Context(), 1)
		if waited := time.Since(began); !errors.Is(err, kafka.GroupCoordinatorNotAvailable) || waited != coordinating*rejoinPause {
			t.Errorf("Receive: %v after %v, want that there is no coordinator after %v", err, waited, coordinating*rejoinPause)
		}
	})
}

// What is returned to a group goes where that group reads, and no other.
func TestReturnTopic(t *testing.T) {
	to, err := Options{}.withDefaults().returnTopic("g", "orders")
	if to != "redrive.delay.v1.g.1m" || err != nil {
		t.Errorf("it is returned to %q, %v", to, err)
	}
}
