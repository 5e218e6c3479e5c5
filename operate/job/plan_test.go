package job_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// dead are n letters of a topic, a second apart.
func dead(n int, change ...func(*store.Collected)) (letters []store.Collected) {
	for i := range n {
		c := store.Collected{Broker: "rabbit", Source: "orders.dead", Format: "redrive", Entry: dlq.Entry{
			Message: brokers.Message{ID: fmt.Sprint(time.Now().UnixNano(), i), Topic: "orders", Body: []byte("{}")},
			Reason:  "poison", DeadAt: noon.Add(time.Duration(i) * time.Second),
		}}
		for _, f := range change {
			f(&c)
		}
		c.Raw = c.Entry.Encode(0)
		letters = append(letters, c)
	}
	return letters
}

func collect(t testing.TB, s *store.Store, letters []store.Collected) {
	t.Helper()
	for batch := range slices.Chunk(letters, 1000) {
		if _, err := s.Collect(t.Context(), noon.Add(time.Hour), batch); err != nil {
			t.Fatal(err)
		}
	}
}

func plan(t testing.TB, s *store.Store, targets job.Targets, spec job.Spec, f store.Filter) job.Plan {
	t.Helper()
	p, err := job.NewPlan(t.Context(), s, noon, targets, spec, f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlan counts what goes where, and why the rest does not.
func TestPlan(t *testing.T) {
	targets := job.Targets{
		{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead"}, Rate: 2},
		{Broker: "kafka", Topic: "refunds", Dead: []string{"refunds.dead"}, Grouped: true, Groups: []string{"billing", "audit"}, Ordered: true},
	}
	refund := func(group string) func(*store.Collected) {
		return func(c *store.Collected) {
			c.Broker, c.Source, c.Entry.Message.Topic, c.Entry.Group = "kafka", "refunds.dead", "refunds", group
		}
	}
	s := openStore(t)
	collect(t, s, dead(40))
	collect(t, s, dead(2, func(c *store.Collected) { c.Entry.Meta.RedriveCount = 3 }))
	collect(t, s, dead(3, func(c *store.Collected) { c.Entry.Message.Topic = "payments" }))
	collect(t, s, dead(30, refund("billing")))
	collect(t, s, dead(4, refund("")))
	collect(t, s, dead(1, refund("reports")))
	if _, err := s.Discard(t.Context(), noon, operator, store.Filter{IDs: []int64{1, 2}}); err != nil {
		t.Fatal(err)
	}

	p := plan(t, s, targets, job.Spec{}, store.Filter{})
	want := job.Plan{
		At: p.At, Filter: store.Filter{UpTo: 80}, Spec: job.Spec{Rate: 50, Waves: []int{1, 5, 25, 100}, Pass: 0.95, Wait: 5 * time.Minute, MaxReturns: 3},
		Letters: 68, Bytes: p.Bytes,
		To: []job.Destination{
			{Broker: "kafka", Topic: "refunds", Group: "billing", Letters: 30},
			{Broker: "rabbit", Topic: "orders", Letters: 38},
		},
		Skipped: map[string]int64{job.SkipRedriveLimit: 2, job.SkipUnknownTopic: 3, job.SkipNoGroup: 4, job.SkipUnknownGroup: 1},
		Other:   map[store.State]int64{store.StateDiscarded: 2},
		Oldest:  noon, Newest: noon.Add(39 * time.Second), Takes: 19 * time.Second,
		Warnings: []string{
			"30 letters to refunds, which keeps the order of its keys: what is old now may overwrite a newer state",
			"no receipt of a worker of orders was ever seen: whether its letters are handled is not known unless consumer.Config.Receipts is set there, and the receipts are read here",
			"no receipt of a worker of refunds was ever seen: whether its letters are handled is not known unless consumer.Config.Receipts is set there, and the receipts are read here",
		},
	}
	if !reflect.DeepEqual(p, want) || p.Bytes == 0 || !p.At.Equal(noon) {
		t.Errorf("the plan is %+v\nwant %+v", p, want)
	}

	p = plan(t, s, targets, job.Spec{AllGroups: true, WithoutReceipts: true}, store.Filter{Broker: "kafka"})
	all := job.Destination{Broker: "kafka", Topic: "refunds", AllGroups: true, Letters: 4}
	if p.Letters != 34 || len(p.To) != 2 || !slices.Contains(p.To, all) {
		t.Errorf("the plan for all groups is %+v", p)
	}
	for _, warning := range []string{
		"4 letters to refunds name no consumer group: every group sees them, of which the configuration names billing, audit",
		"without receipts a wave passes if it does not come back within 5m0s: collect dead letters meanwhile",
	} {
		if !slices.Contains(p.Warnings, warning) {
			t.Errorf("the warnings are %q, want %q among them", p.Warnings, warning)
		}
	}
	if p := plan(t, s, targets, job.Spec{}, store.Filter{IDs: []int64{3, 4}}); len(p.Spec.Waves) != 0 {
		t.Errorf("2 letters go in waves of %v", p.Spec.Waves)
	}
	if p := plan(t, s, targets, job.Spec{Waves: []int{}}, store.Filter{}); len(p.Spec.Waves) != 0 {
		t.Errorf("no waves became %v", p.Spec.Waves)
	}
}

func TestSpecFaults(t *testing.T) {
	s := openStore(t)
	bad := job.Spec{Rate: math.NaN(), Waves: []int{1, 0}, Pass: 1.5, Wait: time.Millisecond, MaxReturns: -1}
	_, err := job.NewPlan(t.Context(), s, noon, targets, bad, store.Filter{})
	if err == nil {
		t.Fatal("no fault was found")
	}
	for _, want := range []string{
		"job: Spec.Rate: is NaN: use more than 0 and at most 100000 letters a second", "Spec.Waves: is [1 0]: each takes one letter or more",
		"Spec.Pass: is 1.5: use a part of 1", "Spec.Wait: is 1ms", "Spec.MaxReturns: is -1",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q, want %q in it", err, want)
		}
	}
	for _, rate := range []float64{-1, math.Inf(1), 1e9} {
		if _, err := job.NewPlan(t.Context(), s, noon, targets, job.Spec{Rate: rate}, store.Filter{}); err == nil {
			t.Errorf("the rate %v is no fault", rate)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	targets := job.Targets{{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead"}}}
	s := openStore(t)
	collect(t, s, dead(21))
	collect(t, s, dead(2, func(c *store.Collected) { c.Entry.Message.Topic = "payments" }))
	tests := []struct {
		name   string
		spec   job.Spec
		filter store.Filter
		reason string
		want   error
		text   string
	}{
		{"nothing", job.Spec{}, store.Filter{Topic: "refunds"}, "", job.ErrNothing, "none matches"},
		{"all skipped", job.Spec{}, store.Filter{Topic: "payments"}, "", job.ErrNothing, "of those that match, 2 skipped as unknown-topic"},
		{"no receipt", job.Spec{}, store.Filter{}, "", job.ErrNoReceipts, "workers of orders"},
		{"no receipt and no waves", job.Spec{Waves: []int{}}, store.Filter{}, "", job.ErrNoReceipts, "send up to 20 letters first"},
		{"force", job.Spec{Force: true, WithoutReceipts: true}, store.Filter{}, " ", job.ErrNoReason, "sent back 3 times"},
		{"force with a reason", job.Spec{Force: true, WithoutReceipts: true}, store.Filter{}, "mended", nil, ""},
		{"without receipts", job.Spec{WithoutReceipts: true}, store.Filter{}, "", nil, ""},
		{"few", job.Spec{}, store.Filter{IDs: []int64{1, 2}}, "", nil, ""},
	}
	for _, tt := range tests {
		j, err := plan(t, s, targets, tt.spec, tt.filter).Create(t.Context(), s, noon, store.Actor{Who: "anna", Reason: tt.reason})
		if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %v: %s", tt.name, err, tt.want, tt.text)
		}
		if err != nil {
			continue
		}
		spec, err := job.SpecOf(j)
		if err != nil || spec.Rate != 50 || spec.Force != tt.spec.Force || j.Filter.UpTo != 23 {
			t.Errorf("%s: the job is %+v, its spec %+v, %v", tt.name, j, spec, err)
		}
	}
	if jobs, err := s.Jobs(t.Context(), store.Page{}); err != nil || len(jobs.Jobs) != 3 {
		t.Errorf("there are %d jobs, %v, want 3", len(jobs.Jobs), err)
	}
}

// TestPlanSendsWhatItShows leaves out what is collected between plan and job.
func TestPlanSendsWhatItShows(t *testing.T) {
	targets := job.Targets{{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead"}}}
	s := openStore(t)
	collect(t, s, dead(3))
	p := plan(t, s, targets, job.Spec{}, store.Filter{})
	collect(t, s, dead(5))
	j, err := p.Create(t.Context(), s, noon, operator)
	if err != nil || j.Filter.UpTo != 3 {
		t.Errorf("the job goes up to %d, %v, want 3", j.Filter.UpTo, err)
	}
}

// BenchmarkPlan plans for 100,000 letters, or as many as REDRIVE_LETTERS says.
func BenchmarkPlan(b *testing.B) {
	n := 100_000
	if text := os.Getenv("REDRIVE_LETTERS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	targets := job.Targets{{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead"}}}
	s := openStore(b)
	i := 0
	collect(b, s, dead(n, func(c *store.Collected) { i++; c.Entry.Fingerprint = fmt.Sprint(i % 1000) }))
	for b.Loop() {
		if p := plan(b, s, targets, job.Spec{}, store.Filter{}); p.Letters != int64(n) {
			b.Fatalf("the plan has %d letters", p.Letters)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "letters/s")
}
