package kafka

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// What tests of the public face need besides it.
const (
	Patience   = patience
	CommitPace = commitPace
	DonePace   = donePace
	DoneHeader = doneHeader
	DoneMark   = doneMark
	OwnerClean = ownerClean

	RackSetting, Selector = rackSetting, selector
	LongestName           = longestName
	LetterPartitions      = letterPartitions
	NewProtocol           = newProtocol
)

var (
	WithinTime  = withinTime
	UniqueName  = uniqueName
	Bodies      = bodies
	AnyContains = anyContains
	Acks        = acks
	KeyOf       = keyOf
	Noise       = noise
	Innocents   = innocents
	Runnable    = runnable
)

// patience is the deadline of calls that tests are not about: a broker that has
// just started on a busy machine takes its time.
const patience = time.Minute

// withinTime gives a call of a test no more than a generous time.
func withinTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func uniqueName(prefix string) string { return fmt.Sprintf("%s-%08x", prefix, rand.Uint32()) }

func bodies(ds []*brokers.Delivery) []string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Message.Body))
	}
	slices.Sort(all)
	return all
}

func anyContains(errs []error, text string) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), text) })
}

// NewOn is New for a Broker that stores over connections of their own, and sees
// changes of a group soon.
func NewOn(o Options, store func(ctx context.Context, network, address string) (net.Conn, error)) (*Broker, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	o = b.options
	o.Dial = store
	b.producer = newProducer(o)
	b.pace = 200 * time.Millisecond
	return b, nil
}

// Generation is that of a source which hands out; it is the zero value between two.
type Generation struct{ g *generation }

// GenerationOf returns the generation of a source.
func GenerationOf(s brokers.Source) Generation {
	src := s.(*source)
	src.mu.Lock()
	defer src.mu.Unlock()
	return Generation{src.generation}
}

// Partitions is how many the generation has.
func (g Generation) Partitions() int { return len(g.g.readers) }

// End ends the generation.
func (g Generation) End(why error) { g.g.end(why) }

// IsOver reports whether nothing can be settled in it any more.
func (g Generation) IsOver() bool { return g.g.ctx.Err() != nil }

// IsCommitted reports whether there is nothing to commit.
func (g Generation) IsCommitted() bool {
	return g.g != nil && !slices.ContainsFunc(g.g.readers, func(r *reader) bool {
		_, ok := r.changed(ownerOpen)
		return ok
	})
}

// Committed is what the metadata of a commit says.
type Committed struct{ *progress }

// ReadCommitted reads the commit of an offset.
func ReadCommitted(offset int64, metadata string) (c Committed, clean bool) {
	text, open := strings.CutPrefix(metadata, ownerOpen)
	text, clean = strings.CutPrefix(text, ownerClean)
	_, text = cutWitness(text, offset)
	return Committed{readProgress(offset, text)}, clean && !open && text == ""
}

// IsDone reports whether an offset is done, and Abandoned how many owners will have
// been lost with it if the present one is.
func (c Committed) IsDone(offset int64) bool   { return c.isDone(offset) }
func (c Committed) Abandoned(offset int64) int { return c.abandoned(offset) }

// CopyOf is the copy of a message that a worker without a secret stores.
func CopyOf(m brokers.Message, meta brokers.Meta) kafka.Message {
	r := copyOf(noSeal, m, meta)
	return kafka.Message{Key: r.key, Value: r.value, Headers: r.headers}
}

// Understood is what a copy says.
func Understood(copied kafka.Message) (brokers.Message, brokers.Meta) {
	r := record{offset: copied.Offset, time: copied.Time, key: copied.Key, value: copied.Value, headers: copied.Headers}
	return understood(r, partition{copied.Topic, copied.Partition}, true, wire.Limits{Now: time.Now(), MaxDelay: time.Hour})
}

// SizeOf is what a message counts against max.message.bytes.
func SizeOf(m kafka.Message) int {
	return record{key: m.Key, value: m.Value, headers: m.Headers}.size()
}
