package kafka_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

func TestPlanRefuses(t *testing.T) {
	topics := []string{"orders"}
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
	b, err := kafka.New(kafka.Options{Brokers: []string{"localhost:9092"}, Dial: refuse})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
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
		_, err := b.Open(t.Context(), tt.sub)
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
	longest := brokers.Subscription{Group: strings.Repeat("g", 228), Topics: []string{strings.Repeat("t", kafka.LongestName)}, MaxAttempts: 1}
	if _, err := b.Open(t.Context(), longest); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the longest names: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := kafka.New(kafka.Options{Prefix: "a/b", SessionTimeout: 100*time.Millisecond - 1, RebalanceTimeout: time.Second - 1, CallTimeout: -1, DelayPartitions: -1, Replication: -2, MessageLimit: -3, MaxDecompressed: -4})
	if !errors.Is(err, brokers.ErrMisconfigured) {
		t.Fatalf("New: %v", err)
	}
	for _, want := range []string{"Brokers", "SessionTimeout", "RebalanceTimeout", "CallTimeout", "DelayPartitions", "Replication", "MessageLimit", "MaxDecompressed", "Prefix"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if _, err := kafka.New(kafka.Options{Brokers: []string{"localhost:9092"}, SessionTimeout: 100 * time.Millisecond, RebalanceTimeout: time.Second, CallTimeout: 1}); err != nil {
		t.Errorf("the least that is allowed: %v", err)
	}
	if _, err := kafka.New(kafka.Options{Brokers: []string{"localhost"}}); err == nil || !strings.Contains(err.Error(), "host:port") {
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
		options kafka.Options
		refused bool
	}{
		"plain":               {kafka.Options{Brokers: remote, SASL: login}, true},
		"one of them":         {kafka.Options{Brokers: append(local, remote...), SASL: login}, true},
		"with TLS":            {kafka.Options{Brokers: remote, SASL: login, TLS: &tls.Config{}}, false},
		"allowed":             {kafka.Options{Brokers: remote, SASL: login, AllowPlaintext: true}, false},
		"this machine":        {kafka.Options{Brokers: local, SASL: login}, false},
		"no password is sent": {kafka.Options{Brokers: remote, SASL: hashed}, false},
		"no login":            {kafka.Options{Brokers: remote}, false},
	} {
		b, err := kafka.New(tt.options)
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
		if _, err := kafka.New(kafka.Options{Brokers: []string{address}}); !errors.Is(err, brokers.ErrMisconfigured) || strings.Contains(err.Error(), "55") || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestSecretOfOptions(t *testing.T) {
	_, err := kafka.New(kafka.Options{Brokers: []string{"localhost:9092"}, Secret: [][]byte{[]byte("hunter2")}})
	if !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "Options.Secret[0]") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a short key: %v", err)
	}
}
