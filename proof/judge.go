package main

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// judgement is what may follow a run. Only expiry leaves a choice, since it
// depends on the jitter.
type judgement struct {
	acks, retries, dies, releases bool
	split                         bool // in a smaller batch
	attempt, throttles            int  // from then on
	counted                       bool
	reason                        string // of the dead letter
	low, high                     time.Duration
}

const (
	reasonAmbiguous = "ambiguous"
	reasonExpired   = "expired"
)

// judge says what may follow a run of d that ended with e, if why ended its
// context.
func (c *checker) judge(d *delivery, e *event, why cause) []judgement {
	k := e.Outcome.class(why)
	ambiguous := d.topic.noRepeat && k.ambiguous()
	dead := judgement{dies: true, counted: true, attempt: d.attempt + 1, throttles: d.throttles, reason: reasonAmbiguous}
	if ambiguous && e.Outcome != okay && e.Outcome != skipping {
		return []judgement{dead}
	}
	var next []judgement
	if e.Flags&isWhole != 0 && e.Outcome != skipping && k.whole() {
		next = append(next, judgement{retries: true, split: true, attempt: d.attempt, throttles: d.throttles})
	} else {
		next = c.probed(d, c.judgeAlone(d, e.Outcome, why, e.Delay), k, e.Delay)
	}
	if d.topic.noRepeat && why == timedOut && e.Outcome != okay && e.Outcome != skipping { // whatever the handler says, it may have had its effect
		next = append(next, dead)
	}
	return next
}

// judgeAlone says what may follow a run of d that was no probe and no part of a
// batch that failed as a whole.
func (c *checker) judgeAlone(d *delivery, o outcome, why cause, hint time.Duration) judgement {
	j := judgement{attempt: d.attempt, throttles: d.throttles}
	if o == okay || o == skipping {
		j.acks = why != lost
		return j
	}
	k, p := o.class(why), d.topic.policy
	number := d.attempt + 1
	switch k {
	case classLost:
		return j
	case classShutdown:
		j.releases = true
		return j
	case classEnvironment:
	case classThrottled:
		free := p.FreeThrottles
		if free == 0 {
			free = 5
		}
		if j.counted = d.throttles >= free; !j.counted {
			j.throttles++
		}
	default:
		j.counted = true
	}
	limit := or(p.MaxAttempts, 10)
	if k.limit > 0 {
		limit = min(limit, k.limit)
	}
	if j.counted {
		j.attempt++
		if number >= limit {
			j.dies, j.reason = true, k.reason
			return j
		}
	}
	j.low, j.high = k.bounds(p, number, d.throttles, hint)
	c.age(d, &j)
	return j
}

// age says whether d may be retried between j.low and j.high from now, and
// whether it may be too old for that.
func (c *checker) age(d *delivery, j *judgement) {
	p := d.topic.policy
	left := or(p.MaxAge, 24*time.Hour)
	if d.first > 0 {
		left -= c.now - d.first
	}
	ran := c.now - d.began
	const rounding = time.Microsecond
	j.retries = left-j.low+rounding >= ran-c.scenario.pace.slack
	j.dies, j.reason = left-j.high-rounding < ran+c.scenario.pace.slack, reasonExpired
}

// refused reports whether d may be dead-lettered without a run.
func (d *delivery) refused() bool {
	return d.crashLoop() || d.oversize() || d.exhausted()
}

func (d *delivery) crashLoop() bool {
	return d.worker.crashLimit > 0 && d.abandoned >= d.worker.crashLimit
}

// exhausted reports whether d came back after its last attempt, because the
// dead letter could not be written.
func (d *delivery) exhausted() bool { return d.attempt >= or(d.topic.policy.MaxAttempts, 10) }

func (d *delivery) oversize() bool {
	m := d.topic.maxBody
	return m > 0 && d.bodySize > m
}

// story checks a dead letter against the deliveries that it may end, and
// returns the delivery.
func (c *checker) story(e *event) *delivery {
	f := c.fate(e.ID)
	var near *delivery
	for _, d := range f.deliveries {
		if d.worker.number != e.Worker || d.running || d.ok || d.buried && d.asked > 0 {
			continue
		}
		if d.runs == 0 {
			reason := e.Note == "crash-loop" && d.crashLoop() || e.Note == "oversize" && d.oversize() || (e.Note == "exhausted" || e.Note == "poison" || e.Note == reasonAmbiguous && d.topic.noRepeat) && d.exhausted()
			if reason && e.Attempt == d.attempt && e.Abandoned == d.abandoned {
				return d
			}
			continue
		}
		for _, j := range d.next {
			if j.dies && e.Note == j.reason && e.Attempt == j.attempt && e.Throttles == j.throttles && e.Abandoned == d.abandoned {
				return d
			}
			if j.dies {
				near = d
			}
		}
	}
	if near != nil {
		c.violate(promiseLetter, e.ID, "dies of %q after %d attempts, the ledger says %+v", e.Note, e.Attempt, near.next)
	} else {
		c.violate(promiseSettlement, e.ID, "dies of %q after %d attempts, which nothing explains", e.Note, e.Attempt)
	}
	return nil
}

// checkLetters holds the dead-letter topics against the ledger.
func (c *checker) checkLetters() {
	stored := map[string]int{}
	for topic, letters := range c.letters {
		for _, m := range letters {
			stored[m.ID]++
			c.checkLetter(topic, m)
		}
	}
	for _, f := range c.all() {
		n := stored[f.id]
		if n > 0 {
			c.dead++
		}
		if n < f.letters {
			c.violate(promiseConfirm, f.id, "has %d dead letters, although %d were confirmed", n, f.letters)
		}
		if n > f.letters+f.spare {
			c.violate(promiseDuplicate, f.id, "has %d dead letters, %d were confirmed and faults explain %d more", n, f.letters, f.spare)
		}
		f.letters = n
	}
}

func (c *checker) checkLetter(topic string, m brokers.Message) {
	want := c.scenario.message(m.ID)
	if want == nil {
		c.violate(promiseStranger, m.ID, "is in %s", topic)
		return
	}
	t := c.scenario.topics[want.topic]
	entry, err := dlq.Decode(m)
	if err != nil {
		c.violate(promiseLetter, m.ID, "cannot be read in %s: %v", topic, err)
		return
	}
	got := entry.Message
	got.Headers = own(got.Headers)
	sent := *want
	sent.Headers = own(sent.Headers)
	if fault := differs(got, sent.Message, t.name); fault != "" {
		c.violate(promiseContent, m.ID, "is in %s with another %s", topic, fault)
	}
	if looped := entry.Reason == "crash-loop"; c.scenario.served && looped != want.fatal() && (!looped || c.fate(m.ID).struck == 0) {
		c.violate(promiseInnocent, m.ID, "is in %s with the reason %q; does it kill: %v", topic, entry.Reason, want.fatal())
	}
	switch {
	case topic != t.dead:
		c.violate(promiseLetter, m.ID, "is in %s, not in %s", topic, t.dead)
	case entry.Reason == "" || entry.ErrorText == "" && len(entry.Truncated) == 0 || entry.Fingerprint == "" || entry.DeadAt.IsZero() || entry.DeadBy == "":
		c.violate(promiseLetter, m.ID, "does not say why, when or where it died: %+v", entry)
	case entry.Meta.Attempt > 0 && !c.unseen(entry) && (entry.Meta.FirstFailedAt.IsZero() || entry.Meta.LastFailedAt.Before(entry.Meta.FirstFailedAt) || entry.Meta.Class == ""):
		c.violate(promiseLetter, m.ID, "does not say when it failed: %+v", entry.Meta)
	case len(entry.Meta.Origin) == 0 && len(entry.Truncated) == 0:
		c.violate(promiseLetter, m.ID, "does not say where it was received")
	}
}
