package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

const years = 9 * 365 * 24 * time.Hour

func keyOf(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func sealOf(t *testing.T, keys ...[]byte) adapter.Seal {
	t.Helper()
	seal, err := adapter.Secret(keys).Seal()
	if err != nil {
		t.Fatal(err)
	}
	return seal
}

// noted is a record of a delay topic that claims a fourth attempt.
func noted(seal adapter.Seal, topic, body string, due time.Time) record {
	return copyOf(seal, brokers.Message{ID: body, Topic: topic, Body: []byte(body)}, brokers.Meta{Attempt: 4, DueAt: due})
}

// logOf is a batch for each record.
func logOf(records ...record) []rawBatch {
	var log []rawBatch
	for i, r := range records {
		r.offset = int64(i)
		b := rawBatch{base: r.offset, records: []record{r}}
		if !r.time.IsZero() {
			b.made = r.time.UnixMilli()
		}
		log = append(log, b)
	}
	return log
}

// Who may write to a delay topic cannot keep its partition for years, as if a
// retry were due then: after a day the offsets go on. What is good is on time.
func TestAttackForgedDelay(t *testing.T) {
	onDelays(t, usualLimits, func() []rawBatch {
		now := time.Now()
		late := noted(noSeal, "orders", "made in years", now.Add(years))
		late.time = now.Add(years)
		return logOf(
			noted(noSeal, "orders", "due in years", now.Add(years)),
			noted(noSeal, "orders", "good", now.Add(time.Minute)),
			late,
			noted(noSeal, "orders", "good, too", now.Add(30*time.Second)),
		)
	}, func(t *testing.T, f *follower) {
		start := time.Now()
		f.run()
		var got []string
		note := func(ds []*brokers.Delivery) {
			for _, d := range ds {
				at := d.ReceivedAt.Sub(start).Round(time.Second)
				if got = append(got, fmt.Sprintf("%s after %v", d.Message.Body, at)); d.Meta().DueAt.After(d.ReceivedAt) {
					t.Errorf("%s is handed out at %v, due at %v", d.Message.Body, d.ReceivedAt, d.Meta().DueAt)
				}
			}
		}
		note(f.collect(2 * time.Minute))
		if low := f.progress.lowWater(); low != 0 {
			t.Errorf("%d is committed, and what waits still is not done", low)
		}
		note(f.collect(24 * time.Hour))
		innocents(t, got, "good, too after 30s", "good after 1m0s")
		want := []string{"made in years after 0s", "good, too after 30s", "good after 1m0s", "due in years after 24h0m0s"}
		if low := f.progress.lowWater(); !slices.Equal(got, want) || low != 4 {
			t.Errorf("handed out %q, want %q; %d is committed, want 4", got, want, low)
		}
	})
}

// The day counts from when the record was made: workers that come and go do not
// prolong it. What the policy allows is believed.
func TestDueTimesAreBounded(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	for name, tt := range map[string]struct {
		made, due, want time.Duration // from now
		policy          time.Duration
	}{
		"usual":               {due: time.Minute, want: time.Minute},
		"long, by the policy": {due: 99 * time.Hour, policy: 100 * time.Hour, want: 99 * time.Hour},
		"long":                {due: 99 * time.Hour, want: longestNote},
		"a day ago":           {made: -longestNote, due: years, want: 0},
		"made ahead":          {made: time.Hour, due: years, want: longestNote},
		"made far ahead":      {made: longestNote + 1, due: years, want: time.Unix(0, 0).Sub(now)},
		"made with no time":   {made: time.UnixMilli(-1).Sub(now), due: years, want: longestNote},
	} {
		rec := noted(noSeal, "orders", "b", now.Add(tt.due))
		rec.time = now.Add(tt.made)
		r := &reader{source: &source{sub: brokers.Subscription{MaxDelay: tt.policy}}}
		if got := time.UnixMilli(r.dueOf(&rec, now)).Sub(now); got != tt.want {
			t.Errorf("%s: due in %v, want %v", name, got, tt.want)
		}
	}
}

// With a secret, nothing in a delay topic that others wrote counts for how far a
// message has come, when it is due, or what is done.
func TestAttackForgedDelayUnderSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.topics[delayOfOrders] = 1
		now, next := time.Now(), keyOf(2)
		ours, older := sealOf(t, next), sealOf(t, keyOf(1))
		changed := noted(ours, "orders", "changed", now.Add(time.Minute))
		changed.value = []byte("changed, indeed")
		moved := noted(ours, "orders", "moved", now.Add(time.Minute))
		moved.headers = append(slices.Clone(moved.headers), kafka.Header{Key: topicHeader, Value: []byte("refunds")})
		s.log = logOf(
			noted(ours, "orders", "good", now.Add(time.Minute)),
			noted(older, "orders", "signed with the key before", now.Add(time.Minute)),
			noted(noSeal, "orders", "of before", now.Add(time.Second)),
			noted(noSeal, "orders", "forged", now.Add(years)),
			noted(sealOf(t, keyOf(3)), "refunds", "signed by somebody", now.Add(years)),
			changed, moved,
			noted(noSeal, "elsewhere", "of no topic", now.Add(years)),
			noted(ours, "orders", "done", now.Add(time.Minute)),
			doneRecord(noSeal, delayPartition, doneValue([]int64{0, 1})),
			doneRecord(ours, partition{delayOfOrders, 1}, doneValue([]int64{0, 1})),
			doneRecord(ours, delayPartition, doneValue([]int64{8})),
		)
		f, err := readerOn(t, s, delayPartition, commitment{-1, ""}, span{0, s.end()}, usualLimits, next, keyOf(1))
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		start := time.Now()
		f.run()
		synctest.Wait()
		if alarms := f.alarms(); len(alarms) != 1 || strings.Count(alarms[0].Error(), errDoneRecord.Error()) != 2 || !errors.Is(alarms[0], errDoneRecord) {
			t.Errorf("two done records are forged, and it says %v", alarms)
		}
		var got []string
		for _, d := range f.collect(2 * time.Minute) {
			text := fmt.Sprintf("%s: %s, attempt %d after %v", d.Message.Topic, d.Message.Body, d.Meta().Attempt, d.ReceivedAt.Sub(start).Round(time.Second))
			if d.Unreadable != nil {
				text += ", unreadable"
			}
			got = append(got, text)
		}
		want := []string{
			"orders: of before, attempt 0 after 0s", "orders: forged, attempt 0 after 0s", "refunds: signed by somebody, attempt 0 after 0s",
			"orders: changed, indeed, attempt 0 after 0s", "orders: moved, attempt 0 after 0s", "orders: of no topic, attempt 0 after 0s, unreadable",
			"orders: good, attempt 4 after 1m0s", "orders: signed with the key before, attempt 4 after 1m0s",
		}
		innocents(t, got, want[6:]...)
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("handed out\n %q\nwant\n %q", got, want)
		}
		if low := f.progress.lowWater(); low != 12 {
			t.Errorf("%d is committed, want 12", low)
		}
	})
}

// What nobody signed, and is of no topic, is not signed by us: a retry of it is
// refused.
func TestUnsignedIsNotCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.topics[delayOfOrders] = 1
		s.log = logOf(noted(noSeal, "elsewhere", "b", time.Time{}))
		f, err := readerOn(t, s, delayPartition, commitment{-1, ""}, span{0, 1}, usualLimits, keyOf(1))
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		src := f.source
		ds, err := src.Receive(t.Context(), 1)
		if err != nil || len(ds) != 1 {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		errs := src.Settle(t.Context(), []brokers.Settlement{{Delivery: ds[0], Action: brokers.Retry, Delay: time.Second}})
		if len(errs) != 1 || !errors.Is(errs[0], brokers.ErrRefused) || !strings.Contains(errs[0].Error(), "Options.Secret") {
			t.Errorf("retry: %v", errs)
		}
	})
}
