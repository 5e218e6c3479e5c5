package job

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/operate/store"
)

// action is what a job does next.
type action string

const (
	doSend   action = "send"   // letters more, or those that are queued already if there are any
	doWait   action = "wait"   // for receipts
	doWave   action = "wave"   // begin the next one
	doPause  action = "pause"  // and ask
	doFinish action = "finish" // all is sent and judged
)

// step is one action.
type step struct {
	action
	letters int    // the most to send
	note    string // why it pauses, or how it finished
}

// standing is how far a job is: all that decides what it does next.
type standing struct {
	spec  Spec
	job   store.Job
	waves []store.Wave // those that matter, in order; the last is the job's current one
	stage int          // how many of Spec.Waves have passed before these
	now   time.Time

	// sentAt is when a letter was last confirmed by a broker, in any wave.
	sentAt time.Time
}

// noteSent finds out when the last letter was sent.
func (s *standing) noteSent() {
	for _, w := range s.waves {
		s.sentAt = later(s.sentAt, w.SentAt)
	}
}

// dropJudged leaves out the waves that need no more looking at: those that
// passed, and those from before somebody resumed the job.
func (s *standing) dropJudged() {
	for len(s.waves) > 1 {
		w := s.waves[0]
		switch passed := s.passed(w); {
		case s.first() && !s.waves[1].Resumed: // the next began because it passed
			s.stage++
		case slices.ContainsFunc(s.waves[1:], func(w store.Wave) bool { return w.Resumed }):
			if s.first() && passed && taken(w) >= s.planned() {
				s.stage++
			}
		case !passed:
			return
		}
		s.waves = s.waves[1:]
	}
}

// first reports whether the waves are among the first ones, each of which has to
// pass before the next.
func (s standing) first() bool { return s.stage < len(s.spec.Waves) }

// planned is how many letters the current wave takes.
func (s standing) planned() int {
	if s.first() {
		return s.spec.Waves[s.stage]
	}
	return s.spec.stretch()
}

func (s standing) current() store.Wave { return s.waves[len(s.waves)-1] }

// next says what to do.
func (s standing) next() step {
	w := s.current()
	under := s.job.Tally.Queued + s.job.Tally.Sending
	over := s.job.Exhausted && under == 0
	if note := s.alarm(); note != "" && !over {
		return step{action: doPause, note: note}
	}
	switch {
	case over && s.job.Tally.Sent > 0 && s.since(s.sentAt) < s.spec.Wait:
		return step{action: doWait}
	case over:
		return step{action: doFinish}
	case under > 0:
		return step{action: doSend}
	case taken(w) < s.planned():
		return step{action: doSend, letters: s.planned() - taken(w)}
	case s.first() && !s.passed(w):
		return step{action: doWait}
	}
	return step{action: doWave}
}

// since is how long ago something happened.
func (s standing) since(t time.Time) time.Duration { return s.now.Sub(t) }

// size is how many letters a wave has, when it is complete.
func (s standing) size(w store.Wave) int {
	if w.N == s.current().N && !s.job.Exhausted {
		return max(s.planned(), taken(w))
	}
	return taken(w)
}

// sent reports whether all letters of a wave are.
func (s standing) sent(w store.Wave) bool {
	return w.Queued+w.Sending == 0 && taken(w) >= s.size(w) && !w.SentAt.IsZero()
}

// passed reports whether enough of a wave is confirmed; or, without receipts,
// whether not too much of it came back in time.
func (s standing) passed(w store.Wave) bool {
	if taken(w) < s.size(w) {
		return false
	}
	if int(w.Confirmed) >= s.needed(w) {
		return true
	}
	return s.spec.WithoutReceipts && s.sent(w) && s.since(w.SentAt) >= s.spec.Wait && bad(w) <= s.tolerated(w)
}

// needed is how many letters of a wave have to be confirmed, and tolerated how
// many need not.
func (s standing) needed(w store.Wave) int {
	return int(math.Ceil(s.spec.Pass*float64(s.size(w)) - 1e-9))
}

func (s standing) tolerated(w store.Wave) int { return s.size(w) - s.needed(w) }

// taken counts the letters of a wave, without those that were skipped.
func taken(w store.Wave) (n int) {
	for _, state := range store.States() {
		if state != store.StateSkipped {
			n += int(w.Counts.Of(state))
		}
	}
	return n
}

// bad counts the letters of a wave that speak against the next: those that died
// again, that the broker refused, and that failed in a way which seldom ends well.
func bad(w store.Wave) int { return int(w.Returned+w.Collected) + hopeless(w) }

func hopeless(w store.Wave) int {
	return int(w.Failing[string(classify.ClassPoison)] + w.Failing[string(classify.ClassUnknown)])
}

// alarm says in a sentence why the job should pause; "" if it should not.
func (s standing) alarm() string {
	for _, w := range s.waves {
		switch {
		case bad(w) > s.tolerated(w) && (s.first() || taken(w) > small):
			return s.whyBad(w)
		case !s.spec.WithoutReceipts && s.sent(w) && !s.passed(w) && s.since(w.SentAt) >= s.spec.Wait:
			return s.whySilent(w)
		}
	}
	return ""
}

func (s standing) whyBad(w store.Wave) string {
	return fmt.Sprintf("%s: %d went wrong (%s)",
		name(w), bad(w), list(
			part{w.Returned, "returned"},
			part{int64(hopeless(w)), "failing"},
			part{w.Collected, "refused by the broker"},
		))
}

func (s standing) whySilent(w store.Wave) string {
	var again int64
	for _, n := range w.Failing {
		again += n
	}
	return fmt.Sprintf("%s: %d confirmed within %v, which is too few (%s): see whether the workers run and send receipts",
		name(w), w.Confirmed, s.spec.Wait, list(
			part{w.Returned, "returned"},
			part{w.Collected, "refused by the broker"},
			part{again, "failed and tried again"},
			part{w.Sent + w.Sending + w.Unknown - again, "not heard of"},
		))
}

func name(w store.Wave) string {
	if n := taken(w); n != 1 {
		return fmt.Sprintf("wave %d of %d letters", w.N, n)
	}
	return fmt.Sprintf("wave %d of 1 letter", w.N)
}

// outcome says how a job ended.
func outcome(j store.Job) string {
	t := j.Tally
	var skipped int64
	for _, n := range j.Skipped {
		skipped += n
	}
	return list(
		part{t.Confirmed, "confirmed"},
		part{t.Returned, "returned"},
		part{t.Unknown + t.Sent, "sent and not heard of"},
		part{t.Collected, "refused by the broker"},
		part{skipped, "skipped"},
	)
}

// part is a number of letters, and what is the matter with them.
type part struct {
	n    int64
	word string
}

func list(parts ...part) string {
	var texts []string
	for _, p := range parts {
		if p.n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", p.n, p.word))
		}
	}
	if len(texts) == 0 {
		return "no letter"
	}
	return strings.Join(texts, ", ")
}
