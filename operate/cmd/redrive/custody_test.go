package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/store"
)

var errInterrupted = errors.New("interrupted by a test")

func TestCollect(t *testing.T) {
	inShop(t, func(s *shop) {
		s.publish("orders-dead", died(0, "orders", "poison", "poison", "declined"), died(1, "orders", "panic", "unknown", hostile))
		s.publish("refunds-dead", died(2, "refunds", "poison", "poison", "declined"))
		s.must(s.brokers["events"].Publish(s.Context(), "payments-dead", died(3, "payments", "poison", "poison", "declined").Encode(0)))
		s.wants("collect_dry.text", "dlq", "collect", "orders", "payments", "--dry-run")
		if n := s.brokers["shop"].Len("orders-dead"); n != 2 {
			s.Errorf("a dry run leaves %d letters in the broker", n)
		}
		s.wants("collect.text", "dlq", "collect", "orders")
		s.wants("collect_kafka.text", "dlq", "collect", "payments")
		s.wants("collect.json", "dlq", "collect", "orders", "payments", "-o", "json")
		s.wants("collected.text", "dlq", "ls")
		if n := s.brokers["shop"].Len("refunds-dead"); n != 1 {
			s.Errorf("refunds are not opted in, and %d of 1 are left", n)
		}
	})
}

// TestCollectBesideFaults has a broker that cannot be reached stop nothing else.
func TestCollectBesideFaults(t *testing.T) {
	inShop(t, func(s *shop) {
		s.publish("orders-dead", died(0, "orders", "poison", "poison", "declined"))
		s.down["events"] = errors.New("connection refused")
		got := s.call("dlq", "collect", "orders", "payments")
		if got.code != exitPartial || !strings.Contains(got.stdout, "shop           1    1") || !strings.Contains(got.stderr, "connection refused") {
			s.Errorf("%+v", got)
		}
		if !strings.Contains(got.stderr, "Go on with: redrive dlq collect orders payments\n") {
			s.Errorf("messages %q", got.stderr)
		}
		delete(s.down, "events")
		s.refuses(exitFailure, "payments-dead", "dlq", "collect", "payments") // which nobody has made
	})
}

func TestCollectIsInterrupted(t *testing.T) {
	inShop(t, func(s *shop) {
		for _, tt := range []struct {
			args    []string
			code    int
			message string
		}{
			{[]string{"--follow"}, exitOK, ""},
			{nil, exitInterrupted, "interrupted by a test: the rest of the letters is in the broker\nGo on with: redrive dlq collect orders --config redrive.yaml\n"},
		} {
			s.publish("orders-dead", died(len(tt.args), "orders", "poison", "poison", "declined"))
			ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errInterrupted)
			got := s.callWith(ctx, append([]string{"dlq", "collect", "orders", "--config", "redrive.yaml"}, tt.args...)...)
			cancel()
			if got.code != tt.code || !strings.HasSuffix(got.stderr, tt.message) || (tt.message == "") != (got.stderr == "") || !strings.Contains(got.stdout, "1    1") {
				s.Errorf("%q: %+v, want %d, %q", tt.args, got, tt.code, tt.message)
			}
		}
	})
}

func TestCollectRefuses(t *testing.T) { inShop(t, func(s *shop) { s.session("collect_refuses") }) }

func TestPeek(t *testing.T) {
	inShop(t, func(s *shop) {
		bad := died(1, "orders", "panic", "unknown", hostile)
		bad.Message.Body = []byte("\xff")
		s.publish("orders-dead", died(0, "orders", "poison", "poison", "declined"), bad, died(2, "orders", "poison", "poison", "declined"))
		s.wants("peek.text", "dlq", "peek", "orders")
		s.wants("peek_two.json", "dlq", "peek", "orders", "-n", "2", "-o", "json")
		if stats := s.brokers["shop"].Stats("orders-dead"); stats.Ready != 3 {
			s.Errorf("after a look the broker has %+v, want 3 ready", stats)
		}
		s.must(s.brokers["events"].Publish(s.Context(), "payments-dead", died(3, "payments", "poison", "poison", "declined").Encode(0)))
		s.wants("peek_kafka.text", "dlq", "peek", "payments")
		s.session("peek_refuses")
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errInterrupted)
		defer cancel()
		if got := s.callWith(ctx, "dlq", "peek", "orders"); got.code != exitInterrupted || s.brokers["shop"].Stats("orders-dead").Ready != 3 {
			s.Errorf("interrupted: %+v, %+v", got, s.brokers["shop"].Stats("orders-dead"))
		}
	})
}

func TestPutBack(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.wants("putback_dry.text", "dlq", "putback", "--topic", "orders", "--dry-run")
		s.session("putback_refuses")
		if n := s.brokers["shop"].Len("orders-dead"); n != 0 {
			s.Fatalf("what was refused has put back %d letters", n)
		}
		want := map[string]brokers.Message{}
		s.withStore(func(st *store.Store) {
			for _, id := range []int64{1, 2, 3, 4, 5, 7} {
				m, _, err := st.Content(s.Context(), id)
				s.must(err)
				want[m.ID] = m
			}
		})
		s.wants("putback.text", "dlq", "putback", "--topic", "orders", "--because", "the old tool does it", "--yes", "--who", "anna@desk")
		got := s.brokers["shop"].Messages("orders-dead")
		for _, m := range got {
			m.PublishedAt = m.PublishedAt.UTC()
			if !reflect.DeepEqual(m, withTopic(want[m.ID], "orders-dead")) {
				s.Errorf("put back\n%+v\nwant\n%+v", m, want[m.ID])
			}
			delete(want, m.ID)
		}
		if len(want) > 0 {
			s.Errorf("not put back: %v", want)
		}
		if l, _ := s.letter(1); l.State != store.StateDiscarded || l.Note != "put back" {
			s.Errorf("letter 1 is %s, %q", l.State, l.Note)
		}
		if acts := s.acts(); !slices.Equal(acts, []string{"anna@desk put back 6: redrive dlq putback --topic=orders: the old tool does it"}) {
			s.Errorf("the audit has %q", acts)
		}
		s.wants("putback_collected.text", "dlq", "collect", "orders")
	})
}

// withTopic is a message as the broker has it in a topic from now on.
func withTopic(m brokers.Message, topic string) brokers.Message {
	m.Topic, m.PublishedAt = topic, time.Now().UTC()
	return m
}

// TestPutBackFails leaves in the store what the broker does not confirm.
func TestPutBackFails(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.fault = func(op memory.Op) memory.Fault {
			if op.Operation == memory.Publish && (op.ID == "orders-1" || op.ID == "orders-3") {
				return memory.Fault{Err: errors.New("the disk of the broker is full")}
			}
			return memory.Fault{}
		}
		got := s.call("dlq", "putback", "--topic", "orders", "--because", "a test", "--yes")
		if got.code != exitPartial || got.stdout != "" || !strings.Contains(got.stderr, "put back 4 letters of 6: ") ||
			!strings.Contains(got.stderr, "Go on with: redrive dlq putback --topic=orders --because='a test'\n") {
			s.Errorf("%+v", got)
		}
		for id, want := range map[int64]store.State{1: store.StateDiscarded, 2: store.StateCollected, 4: store.StateCollected, 5: store.StateDiscarded} {
			if l, _ := s.letter(id); l.State != want {
				s.Errorf("letter %d is %s, want %s", id, l.State, want)
			}
		}
		s.fault = nil
		if got := s.call("dlq", "putback", "--topic=orders", "--because=a test", "--yes"); got.code != exitOK || got.stdout != "put back 2 letters\n" {
			s.Errorf("%+v", got)
		}
	})
}

// TestPutBackOnlyWhereNamed sends nothing to a topic that the configuration does
// not name.
func TestPutBackOnlyWhereNamed(t *testing.T) {
	inShop(t, func(s *shop) {
		e := died(0, "orders", "poison", "poison", "declined")
		s.withStore(func(st *store.Store) {
			for n, broker := range []string{"shop", "gone"} {
				_, err := st.Collect(s.Context(), time.Now(), []store.Collected{{Broker: broker, Source: fmt.Sprint("elsewhere-", n), Format: "redrive", Raw: e.Encode(0), Entry: e}})
				s.must(err)
			}
		})
		s.refuses(exitFailure, "elsewhere-0 on shop, which redrive.yaml does not name", "dlq", "putback", "1")
		s.refuses(exitFailure, "elsewhere-1 on gone, which redrive.yaml does not name", "dlq", "putback", "2")
	})
}
