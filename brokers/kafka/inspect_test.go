package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// TestInspectDelays plants what Open does not look for.
func TestInspectDelays(t *testing.T) {
	now := time.Now()
	q := quality{name: "redrive.delay.v1.billing.1m", role: delays, longest: time.Minute}
	for _, tt := range []struct {
		name   string
		oldest time.Time
		want   string
	}{
		{"nothing waits", time.Time{}, ""},
		{"not due for long", now.Add(-16 * time.Minute), ""},
		{"overdue", now.Add(-16*time.Minute - time.Second), `noted "redrive.delay.v1.billing.1m": oldest waiting retry is 16m1s old (up to 7 wait), and should be at most 16m0s: it was due: no worker of the group "billing" runs`},
	} {
		check(t, tt.name, q.late("billing", 7, tt.oldest, now), tt.want)
	}
	for _, tt := range []struct {
		name                      string
		partitions, most, usually int
		want                      string
	}{
		{"as Open creates it", 4, 12, 4, ""},
		{"as few as messages have", 1, 1, 4, ""},
		{"fewer", 1, 12, 4, `partitions is 1, and should be 4: retries go through fewer workers than the messages that come in, and wait for each other in their indexes. To mend it: kafka-topics.sh --alter --topic redrive.delay.v1.billing.1m --partitions 4`},
		{"fewer than few messages have", 1, 2, 4, "partitions is 1, and should be 2"},
	} {
		q.state.partitions = tt.partitions
		check(t, tt.name, q.hasFewPartitions(map[string]int{"orders": tt.most, "refunds": 1}, tt.usually), tt.want)
	}
}

// TestFirstWaiting passes over what was handled ahead of its turn, and over what says so.
func TestFirstWaiting(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	log := func() (records []*record) {
		for i := range int64(4) {
			r := &record{offset: 10 + i, time: began.Add(time.Duration(i) * time.Second), key: []byte("k")}
			if i == 2 {
				done := doneRecord(adapter.Seal{}, partition{"delays", 0}, doneValue([]int64{10}))
				done.offset, done.time, r = r.offset, r.time, &done
			}
			records = append(records, r)
		}
		return records
	}
	committed := newProgress(10)
	committed.done(11)
	all := newProgress(10)
	all.skip(10, 14)
	for name, tt := range map[string]struct {
		done *progress
		want time.Time
	}{
		"a done record": {newProgress(10), began.Add(time.Second)},
		"and a commit":  {readProgress(10, committed.metadata(metadataLimit)), began.Add(3 * time.Second)},
		"nothing waits": {all, time.Time{}},
	} {
		if got := firstWaiting(log(), tt.done); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func check(t *testing.T, name string, found []inspect.Finding, want string) {
	t.Helper()
	if want == "" && len(found) == 0 {
		return
	}
	if len(found) != 1 || want == "" {
		t.Errorf("%s: found %v, want %q", name, found, want)
		return
	}
	if f := found[0]; !strings.Contains(f.Severity.String()+" "+f.String(), want) || f.Fix == "" || f.See == "" {
		t.Errorf("%s: found\n%v\nwant\n%s", name, f, want)
	}
}
