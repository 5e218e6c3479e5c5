package main

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// partition is one of a topic on a log.
type partition struct {
	topic  string
	number int
}

func (p partition) String() string { return p.topic + "/" + strconv.Itoa(p.number) }

const (
	// commitDoubt is how long the consumer may take to write down that it knows of
	// a settlement which a commit has in it.
	commitDoubt = 500 * time.Millisecond

	// commitDelay is how long a commit may take from what it has in it to its
	// request, which may need a connection first, on a busy machine.
	commitDelay = 3 * time.Second
)

// takeCommitted follows the commits of a worker, which makes one after the other.
// One that is refused leaves open what was settled since the one before.
func (c *checker) takeCommitted(e *event) {
	w := c.workers[e.Worker]
	before := w.commit
	w.commit = e.At
	if e.Err == fine {
		w.committed = max(before, e.At-e.Delay-commitDelay) - commitDoubt
		return
	}
	c.refused++
	c.sever(w)
}

// unsure is from when on w may have settled what will be repeated.
func (c *checker) unsure(w *life) time.Duration {
	since := c.now - c.scenario.pace.slack
	switch {
	case c.leased():
		return forever
	case c.scenario.broker == "kafka":
		since = w.committed
	}
	if c.stormy() {
		since = min(since, c.storm.from)
	}
	return since
}

// again is how many times more what is confirmed now may be stored: Kafka's
// library sends what it has no answer to up to three times.
func (c *checker) again() int {
	if c.scenario.broker == "kafka" && c.stormy() {
		return 2
	}
	return 0
}

// origin is where the record of a delivery is, unless it is a copy.
func origin(m brokers.Message, meta brokers.Meta) (partition int, offset int64) {
	if !meta.DueAt.IsZero() || meta.Origin.Get("topic") != m.Topic {
		return 0, -1
	}
	partition, _ = strconv.Atoi(meta.Origin.Get("partition"))
	offset, err := strconv.ParseInt(meta.Origin.Get("offset"), 10, 64)
	if err != nil {
		offset = -1
	}
	return partition, offset
}

// checkOffsets holds the committed offsets against the settlements that began
// before they were seen: none may be above the lowest open record.
func (c *checker) checkOffsets() {
	settled := c.settlements()
	last := map[partition]int64{}
	c.commits = len(c.advances)
	for _, e := range c.advances {
		p := partition{e.Topic, e.Partition}
		c.now = e.At
		if e.Offset < last[p] {
			c.violate(promiseForward, "", "the committed offset of %s was %d, and is %d", p, last[p], e.Offset)
			continue
		}
		if c.scenario.topic(p.topic) != nil {
			for offset := last[p]; offset < e.Offset; offset++ {
				at, ok := settled[p][offset]
				if !ok || at > e.At {
					c.violate(promiseForward, "", "the committed offset of %s is %d, and the record at %d is open (settled: %v, at %v)", p, e.Offset, offset, ok, at)
					break
				}
			}
		}
		last[p] = e.Offset
	}
}

// settlements are when the first settlement of each record began that may have
// had an effect.
func (c *checker) settlements() map[partition]map[int64]time.Duration {
	all := map[partition]map[int64]time.Duration{}
	byTime := slices.SortedFunc(maps.Values(c.deliveries), func(a, b *delivery) int { return cmp.Compare(a.took, b.took) })
	for _, d := range byTime {
		if d.took == 0 || d.offset < 0 {
			continue
		}
		if all[d.place] == nil {
			all[d.place] = map[int64]time.Duration{}
		}
		if _, ok := all[d.place][d.offset]; !ok {
			all[d.place][d.offset] = d.took
		}
	}
	return all
}
