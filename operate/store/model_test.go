package store_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/store"
)

// TestModel does random things to a store, as two processes, and to a plain model of
// it, and holds them against each other after each.
func TestModel(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		seed := rand.Uint64()
		m := &model{t: t, db: raw(t, url), random: rand.New(rand.NewPCG(seed, 2)), now: noon, letters: map[int64]*modelLetter{}}
		processes := []*store.Store{open(t, url), open(t, url)}
		steps := []func(){
			m.collect, m.collect, m.collect, m.again, m.withToken(m.comeBack), m.createJob, m.restore, m.sweep,
			m.withJob(m.queue), m.withJob(m.queue), m.withJob(m.nextWave), m.withJob(m.claim), m.withJob(m.claim),
			m.withJob(m.sent), m.withJob(m.sent), m.withJob(m.expire), m.withJob(m.endJob),
			m.withToken(m.receipt), m.withToken(m.receipt), m.withToken(m.receipt),
			m.withLetter(m.discard), m.withLetter(m.putBack), m.withLetter(m.delete),
		}
		for n := range 300 {
			m.s = processes[m.random.IntN(2)]
			m.now = m.now.Add(time.Duration(1+m.random.IntN(1000)) * time.Millisecond)
			steps[m.random.IntN(len(steps))]()
			if m.compare(); t.Failed() {
				t.Fatalf("seed %d, step %d: %s", seed, n, m.did)
			}
		}
	})
}

type model struct {
	t       *testing.T
	s       *store.Store
	db      *sql.DB
	random  *rand.Rand
	now     time.Time
	did     string
	n       int // messages, ever
	letters map[int64]*modelLetter
	last    int64 // ID
	jobs    []*modelJob
}

type modelLetter struct {
	id             int64
	collected      store.Collected
	key            string
	at             time.Time
	state, was     store.State
	token, old     string
	previous, next int64
	wave           *store.Tally
	job            *modelJob
	failed         bool
	putBack        bool
	changed        time.Time
}

type modelJob struct {
	lease   store.Lease
	upTo    int64
	at      time.Time // of the last letter looked at
	id      int64
	waves   []*store.Tally
	skipped int64
	ended   bool
}

func (m *model) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%s: %v", m.did, err)
	}
}

// sorted returns the letters that f accepts, as lists have them, oldest first.
func (m *model) sorted(f func(*modelLetter) bool) (list []*modelLetter) {
	for _, l := range m.letters {
		if f(l) {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *modelLetter) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	return list
}

func in(states ...store.State) func(*modelLetter) bool {
	return func(l *modelLetter) bool { return slices.Contains(states, l.state) }
}

func (m *model) some(f func(*modelLetter) bool) *modelLetter {
	list := m.sorted(f)
	if len(list) == 0 {
		return nil
	}
	return list[m.random.IntN(len(list))]
}

func (m *model) withLetter(step func(*modelLetter)) func() {
	return func() {
		if l := m.some(func(*modelLetter) bool { return true }); l != nil {
			step(l)
		}
	}
}

func (m *model) withToken(step func(*modelLetter)) func() {
	return func() {
		if l := m.some(func(l *modelLetter) bool { return l.token != "" }); l != nil {
			step(l)
		}
	}
}

// withJob gives a step one of the jobs that have not ended.
func (m *model) withJob(step func(*modelJob)) func() {
	return func() {
		open := slices.DeleteFunc(slices.Clone(m.jobs), func(j *modelJob) bool { return j.ended })
		if len(open) > 0 {
			step(open[m.random.IntN(len(open))])
		}
	}
}

// counter is the one of a state in a tally.
func counter(t *store.Tally, s store.State) *int64 {
	c := &t.Counts
	return map[store.State]*int64{
		store.StateCollected: &c.Collected, store.StateQueued: &c.Queued, store.StateSending: &c.Sending, store.StateSent: &c.Sent, store.StateConfirmed: &c.Confirmed,
		store.StateUnknown: &c.Unknown, store.StateReturned: &c.Returned, store.StateSkipped: &c.Skipped, store.StateDiscarded: &c.Discarded,
	}[s]
}

func (m *model) move(l *modelLetter, to store.State) {
	if l.wave != nil {
		*counter(l.wave, l.state)--
		*counter(l.wave, to)++
	}
	l.state, l.changed = to, m.now
}

func (m *model) take(l *modelLetter, j *modelJob, to store.State) {
	l.job, l.wave, l.failed = j, j.waves[len(j.waves)-1], false
	*counter(l.wave, to)++
	l.state, l.changed = to, m.now
}

func (m *model) add(send string) *modelLetter {
	m.n++
	e := entry(m.n)
	e.Message.Topic, e.Fingerprint = fmt.Sprintf("topic-%d", m.n%3), fmt.Sprintf("f%d", m.n%5)
	e.Message.Key = fmt.Sprintf("key-%d", m.random.IntN(60))
	e.DeadAt = m.now.Add(-time.Duration(m.random.IntN(5)) * time.Second)
	e.Meta.Send = send
	c := collected(e)
	n, err := m.s.Collect(m.t.Context(), m.now, []store.Collected{c, c})
	if m.check(err); n != 1 {
		m.t.Fatalf("%s: Collect = %d, want 1", m.did, n)
	}
	m.last++
	l := &modelLetter{id: m.last, collected: c, key: e.Message.Key, at: e.DeadAt, state: store.StateCollected, changed: m.now}
	m.letters[l.id] = l
	return l
}

func (m *model) collect() {
	m.did = "collect"
	m.add("")
}

// again collects a letter that is known, whatever became of it.
func (m *model) again() {
	if l := m.some(func(l *modelLetter) bool { return !l.putBack }); l != nil {
		m.did = fmt.Sprintf("letter %d, which is %s, is collected again", l.id, l.state)
		gives(m.t, 0)(m.s.Collect(m.t.Context(), m.now, []store.Collected{l.collected}))
	}
}

func (m *model) comeBack(old *modelLetter) {
	m.did = fmt.Sprintf("letter %d comes back", old.id)
	l := m.add(old.token)
	if old.next != 0 {
		return
	}
	l.previous, old.next = old.id, l.id
	if in(store.StateSending, store.StateSent, store.StateUnknown)(old) {
		m.move(old, store.StateReturned)
	}
}

func (m *model) createJob() {
	if slices.ContainsFunc(m.jobs, func(j *modelJob) bool { return !j.ended }) && m.random.IntN(3) > 0 {
		return
	}
	m.did = "create a job"
	j, err := m.s.CreateJob(m.t.Context(), m.now, operator, store.Filter{}, nil)
	m.check(err)
	l, err := m.s.Lease(m.t.Context(), m.now, j.ID, "me", time.Minute)
	m.check(err)
	m.jobs = append(m.jobs, &modelJob{lease: l, upTo: m.last, waves: []*store.Tally{{}}})
}

func (m *model) queue(j *modelJob) {
	want := 1 + m.random.IntN(6)
	m.did = fmt.Sprintf("job %d queues %d", j.lease.Job, want)
	skips := func(id int64) bool { return id%7 == 0 }
	queued, _, err := m.s.Queue(m.t.Context(), m.now, j.lease, want, func(l store.Letter) string {
		if skips(l.ID) {
			return "seven"
		}
		return ""
	})
	m.check(err)
	list := m.sorted(func(l *modelLetter) bool {
		after := l.at.After(j.at) || l.at.Equal(j.at) && l.id > j.id
		return after && l.id <= j.upTo && in(store.StateCollected, store.StateUnknown, store.StateSkipped)(l)
	})
	taken, enough := 0, 0
	for ; taken < len(list) && enough < want; taken++ {
		if !skips(list[taken].id) {
			enough++
		}
	}
	if taken == len(list) {
		j.upTo = 0 // nothing is left for it
	} else {
		list = list[:taken]
		j.at, j.id = list[taken-1].at, list[taken-1].id
	}
	for _, l := range list {
		if skips(l.id) {
			m.take(l, j, store.StateSkipped)
			j.skipped++
		} else {
			m.take(l, j, store.StateQueued)
			queued--
		}
	}
	same(m.t, m.did+", more than it should", queued, 0)
}

func (m *model) nextWave(j *modelJob) {
	j.waves = append(j.waves, &store.Tally{})
	m.did = fmt.Sprintf("job %d goes on to wave %d", j.lease.Job, len(j.waves))
	gives(m.t, len(j.waves))(m.s.NextWave(m.t.Context(), m.now, j.lease))
}

func (m *model) claim(j *modelJob) {
	m.did = fmt.Sprintf("job %d claims", j.lease.Job)
	n := 1 + m.random.IntN(4)
	claimed, err := m.s.Claim(m.t.Context(), m.now, j.lease, n)
	m.check(err)
	of := func(s store.State) []*modelLetter {
		list := m.sorted(func(l *modelLetter) bool { return l.job == j && l.state == s })
		return list[:min(n, len(list))]
	}
	want := of(store.StateSending)
	again := len(want) > 0
	if !again {
		want = of(store.StateQueued)
	}
	if len(claimed) != len(want) {
		m.t.Fatalf("%s: %d letters, want %d", m.did, len(claimed), len(want))
	}
	for i, l := range want {
		if claimed[i].ID != l.id || again && claimed[i].Token != l.token || !again && claimed[i].Token == l.token {
			m.t.Errorf("%s: letter %d with the token %s, want %d", m.did, claimed[i].ID, claimed[i].Token, l.id)
		}
		if !again {
			l.old, l.token = l.token, claimed[i].Token
			m.move(l, store.StateSending)
		}
	}
}

func (m *model) sent(j *modelJob) {
	m.did = fmt.Sprintf("the broker answers job %d", j.lease.Job)
	var outcomes []store.Outcome
	for _, l := range m.sorted(func(l *modelLetter) bool { return l.job == j && l.state == store.StateSending }) {
		switch m.random.IntN(6) {
		case 0: // it does not
		case 1:
			outcomes = append(outcomes, store.Outcome{Letter: l.id, Refused: "too large"})
			m.move(l, store.StateCollected)
			l.token = ""
		default:
			outcomes = append(outcomes, store.Outcome{Letter: l.id})
			m.move(l, store.StateSent)
		}
	}
	for _, l := range m.sorted(func(l *modelLetter) bool {
		return l.job != j || l.changed.Before(m.now) && l.state != store.StateSending
	}) {
		outcomes = append(outcomes, store.Outcome{Letter: l.id, Refused: []string{"", "so it seems"}[m.random.IntN(2)]}) // not its own, or a receipt was faster
	}
	m.check(m.s.Sent(m.t.Context(), m.now, j.lease, outcomes))
}

func (m *model) receipt(l *modelLetter) {
	outcome := []string{"failed", "handled", "dead"}[m.random.IntN(3)]
	m.did = fmt.Sprintf("letter %d, which is %s, %s", l.id, l.state, outcome)
	believed, err := m.s.Receipts(m.t.Context(), m.now, []dlq.Receipt{{Send: l.token, Outcome: outcome}, {Send: l.token + "x", Outcome: outcome}, {Send: l.old, Outcome: outcome}})
	if m.check(err); believed != 1 {
		m.t.Errorf("%s: %d receipts are believed, want 1", m.did, believed)
	}
	if !in(store.StateSending, store.StateSent, store.StateUnknown)(l) {
		return
	}
	switch outcome {
	case "failed":
		if !l.failed {
			l.failed, l.changed = true, m.now
			l.wave.Failed++
		}
	case "handled":
		m.move(l, store.StateConfirmed)
	case "dead":
		m.move(l, store.StateReturned)
	}
}

func (m *model) expire(j *modelJob) {
	m.did = fmt.Sprintf("job %d waits no longer", j.lease.Job)
	before := m.now.Add(-5 * time.Second)
	list := m.sorted(func(l *modelLetter) bool { return l.job == j && l.state == store.StateSent && l.changed.Before(before) })
	gives(m.t, int64(len(list)))(m.s.Expire(m.t.Context(), m.now, j.lease.Job, before))
	for _, l := range list {
		m.move(l, store.StateUnknown)
	}
}

func (m *model) endJob(j *modelJob) {
	if m.random.IntN(3) > 0 {
		return
	}
	m.did = fmt.Sprintf("job %d is cancelled", j.lease.Job)
	m.check(m.s.SetJob(m.t.Context(), m.now, operator, j.lease.Job, store.JobCancelled, ""))
	j.ended = true
	for _, l := range m.sorted(func(l *modelLetter) bool { return l.job == j && l.state == store.StateQueued }) {
		m.move(l, store.StateCollected)
	}
	later := m.now.Add(time.Hour) // the lease is over
	_, err := m.s.Expire(m.t.Context(), later, j.lease.Job, later)
	m.check(err)
	m.now = later
	for _, l := range m.sorted(func(l *modelLetter) bool { return l.job == j && in(store.StateSending, store.StateSent)(l) }) {
		m.move(l, store.StateUnknown)
	}
}

var discardable = in(store.StateCollected, store.StateUnknown, store.StateReturned, store.StateSkipped)

func (m *model) discard(l *modelLetter) {
	m.did = fmt.Sprintf("discard letter %d", l.id)
	n, err := m.s.Discard(m.t.Context(), m.now, operator, store.Filter{IDs: []int64{l.id}})
	m.check(err)
	m.discarded(l, n)
}

func (m *model) putBack(l *modelLetter) {
	m.did = fmt.Sprintf("put letter %d back", l.id)
	n, err := m.s.PutBack(m.t.Context(), m.now, operator, []int64{l.id}, func(_ context.Context, letters []int64) ([]int64, error) { return letters, nil })
	m.check(err)
	l.putBack = l.putBack || n > 0
	m.discarded(l, n)
}

func (m *model) discarded(l *modelLetter, n int64) {
	same(m.t, m.did+", which is "+string(l.state), n == 1, discardable(l))
	if n == 1 {
		l.was = l.state
		m.move(l, store.StateDiscarded)
	}
}

func (m *model) restore() {
	m.did = "restore"
	list := m.sorted(in(store.StateDiscarded))
	gives(m.t, int64(len(list)))(m.s.Restore(m.t.Context(), m.now, operator, store.Filter{}))
	for _, l := range list {
		m.move(l, l.was)
	}
}

func (m *model) sweep() {
	m.did = "sweep"
	keep := time.Duration(1+m.random.IntN(20)) * time.Second
	swept, err := m.s.Sweep(m.t.Context(), m.now, store.Retention{Confirmed: keep, Returned: 2 * keep, Discarded: 3 * keep})
	m.check(err)
	for state, keep := range map[store.State]time.Duration{store.StateConfirmed: keep, store.StateReturned: 2 * keep, store.StateDiscarded: 3 * keep} {
		for _, l := range m.sorted(in(state)) {
			if l.changed.Before(m.now.Add(-keep)) {
				delete(m.letters, l.id)
				swept.Letters--
			}
		}
	}
	same(m.t, "swept more than it should", swept.Letters, 0)
}

func (m *model) delete(l *modelLetter) {
	m.did = "delete " + l.key
	list := m.sorted(func(other *modelLetter) bool { return other.key == l.key })
	gives(m.t, int64(len(list)))(m.s.Delete(m.t.Context(), m.now, operator, l.key))
	for _, l := range list {
		if in(store.StateQueued, store.StateSending, store.StateSent)(l) {
			*counter(l.wave, l.state)--
		}
		delete(m.letters, l.id)
	}
}

// compare holds the letters and all counters against the model, and against each
// other.
func (m *model) compare() {
	m.t.Helper()
	var got []string
	for _, l := range list(m.t, m.s, store.Filter{}, 1000) {
		job := slices.IndexFunc(m.jobs, func(j *modelJob) bool { return j.lease.Job == l.Job })
		got = append(got, fmt.Sprint(l.ID, l.State, l.Previous, l.Next, job))
	}
	var want []string
	for _, l := range slices.Backward(m.sorted(func(*modelLetter) bool { return true })) {
		want = append(want, fmt.Sprint(l.id, l.state, l.previous, l.next, slices.Index(m.jobs, l.job)))
	}
	same(m.t, "letters", got, want)
	for _, j := range m.jobs {
		got, err := m.s.Job(m.t.Context(), j.lease.Job)
		m.check(err)
		same(m.t, fmt.Sprint("skipped by job ", got.ID), got.Skipped["seven"], j.skipped)
		for i, want := range j.waves {
			same(m.t, fmt.Sprintf("wave %d of job %d", i+1, got.ID), wave(m.t, m.s, got.ID, i+1).Tally, *want)
		}
	}
	recount(m.t, m.db, "topic", "topics")
	recount(m.t, m.db, "cluster", "clusters")
}

// recount holds kept counters against the letters.
func recount(t *testing.T, db *sql.DB, column, table string) {
	t.Helper()
	kept, counted := map[string]int64{}, map[string]int64{}
	var columns []string
	for _, s := range store.States() {
		columns = append(columns, string(s))
	}
	rows, err := db.Query("select id, bytes, " + strings.Join(columns, ", ") + " from " + table)
	must(t, err)
	for rows.Next() {
		var id, bytes int64
		n := make([]int64, len(columns))
		dest := []any{&id, &bytes}
		for i := range n {
			dest = append(dest, &n[i])
		}
		must(t, rows.Scan(dest...))
		for i, n := range append(n, bytes) {
			if n != 0 {
				kept[fmt.Sprint(table, id, append(columns, "bytes")[i])] = n
			}
		}
	}
	must(t, rows.Err())
	rows, err = db.Query("select " + column + ", state, count(*), cast(sum(size) as bigint) from letters group by " + column + ", state")
	must(t, err)
	for rows.Next() {
		var id, state, n, bytes int64
		must(t, rows.Scan(&id, &state, &n, &bytes))
		counted[fmt.Sprint(table, id, columns[state])] = n
		counted[fmt.Sprint(table, id, "bytes")] += bytes
	}
	must(t, rows.Err())
	same(t, "counters of "+table, kept, counted)
}
