package kafka

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

func TestWitnessText(t *testing.T) {
	const low = 5000
	w := witnessOf(&record{offset: 4711, time: time.UnixMilli(1_700_000_000_123)})
	for name, tt := range map[string]struct {
		text string
		want witness
		rest string
	}{
		"none":              {"r1:abc", witness{}, "r1:abc"},
		"empty":             {"", witness{}, ""},
		"one":               {w.text(low) + "r1:w;", w, "r1:w;"},
		"and no more":       {w.text(low), w, ""},
		"of another offset": {w.text(low+1) + "r1:", witness{}, "r1:"},
		"cut off":           {w.text(low)[:6], witness{}, ""},
		"no time":           {"w4;x", witness{}, "x"},
		"no offset":         {"w3mv.lfls6q3v;x", witness{}, "x"},
		"no digits":         {"w-.!.3uw;x", witness{}, "x"},
		"negative":          {"w-4.5.3uw;x", witness{}, "x"},
		"out of range":      {"wzzzzzzzzzzzzzzzz.5.3uw;x", witness{}, "x"},
		"another's text":    {"worker-7", witness{}, ""},
	} {
		if got, rest := cutWitness(tt.text, low); got != tt.want || rest != tt.rest {
			t.Errorf("%s: %q is %+v and %q, want %+v and %q", name, tt.text, got, rest, tt.want, tt.rest)
		}
	}
	if got := witnessOf(&record{offset: 1}); got != (witness{}) || got.text(low) != "" {
		t.Errorf("a record without a time is %+v, %q", got, got.text(low))
	}
}

// A time that the broker has set is not the one that comes with the record.
func TestBrokersTimesAreNoWitness(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{base: 0, stamped: true, records: numbered(0, 2)}}
		if w := mustFetch(t, c, first, 0, 1<<20, 0).witness; w != (witness{}) {
			t.Errorf("of times that the broker has set %+v is the witness", w)
		}
		s.log = append(s.log, rawBatch{base: 2, records: []record{{offset: 2}, {offset: 3}}})
		if w := mustFetch(t, c, first, 0, 1<<20, 0).witness; w.offset != 2 {
			t.Errorf("the witness is %+v, want the first that has the time of its producer, 2", w)
		}
	})
}

// Whoever takes a partition over looks for the record that the commit names.
func TestAnotherLogIsFoundOut(t *testing.T) {
	const low, end, made = 5, 10, 946_684_800_000 // the time of what the stub has
	all := numbered(0, end)
	for name, tt := range map[string]struct {
		metadata string
		has      span
		records  []record
		next     int64 // the first record that is read
		alarm    bool
	}{
		"the same":              {witness{3, made}.text(low), span{0, end}, all, low, false},
		"another":               {witness{3, made + 1}.text(low), span{0, end}, all, 0, true},
		"compacted":             {witness{3, made + 1}.text(low), span{0, end}, slices.Delete(slices.Clone(all), 3, 4), low, false},
		"deleted":               {witness{3, made + 1}.text(low), span{4, end}, all[4:], low, false},
		"no witness":            {"", span{0, end}, all, low, false},
		"copied from elsewhere": {witness{3, made + 1}.text(low + 2), span{0, end}, all, low, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStub(t)
			s.start, s.log = tt.has.first, []rawBatch{{base: tt.has.first, last: end - 1, records: tt.records}}
			f, err := readerOn(t, s, first, commitment{low, ownerClean + tt.metadata}, tt.has, usualLimits)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer f.stop()
			got, err := f.fetch(t.Context())
			if err != nil || len(got.records) == 0 || got.records[0].offset != tt.next {
				t.Errorf("%s: %d records, %v; want those from offset %d on", name, len(got.records), err, tt.next)
			}
			alarms := f.alarms()
			if (len(alarms) > 0) != tt.alarm || tt.alarm && !strings.Contains(alarms[0].Error(), "another log") {
				t.Errorf("%s: alarms %v", name, alarms)
			}
		})
	}
}

// A log that is made anew is empty at first. What is written to it while the
// reader makes sure is read from its beginning.
func TestLogThatIsFilledMeanwhile(t *testing.T) {
	const low, end, made = 5, 10, 946_684_800_000
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*fetch.Request); ok && call == 2 {
				s.log = []rawBatch{{base: 0, last: end - 1, records: numbered(0, end)}}
			}
			return nil, nil
		}
		f, err := readerOn(t, s, first, commitment{low, ownerClean + witness{3, made + 1}.text(low)}, span{0, end}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		got, err := f.fetch(t.Context())
		if _, out := errors.AsType[*rangeError](err); !out {
			t.Errorf("from an empty log: %d records, %v; want that there is no offset %d", len(got.records), err, low)
		}
		got, err = f.fetch(t.Context()) // as whoever comes next does
		if err != nil || len(got.records) == 0 || got.records[0].offset != 0 || len(f.alarms()) == 0 {
			t.Errorf("from the new log: %d records, %v, and no alarm; want those from offset 0 on", len(got.records), err)
		}
	})
}

func FuzzWitness(f *testing.F) {
	f.Add("w3mv.lfls6q3v.3uw;r1:abc", int64(5000))
	f.Add("w-1.5.0;", int64(0))
	f.Add("worker-7", int64(-1))
	f.Fuzz(func(t *testing.T, text string, low int64) {
		w, rest := cutWitness(text, low)
		if !strings.HasSuffix(text, rest) {
			t.Fatalf("of %q is left %q", text, rest)
		}
		if w == (witness{}) {
			return
		}
		if w.offset < 0 || w.time <= 0 {
			t.Fatalf("%q is %+v", text, w)
		}
		if got, left := cutWitness(w.text(low)+rest, low); got != w || left != rest {
			t.Fatalf("%+v is written as %q, which reads as %+v and %q", w, w.text(low), got, left)
		}
		if got, _ := cutWitness(text, low+1); got != (witness{}) {
			t.Fatalf("%q is of offset %d, and %+v of the next one", text, low, got)
		}
	})
}
