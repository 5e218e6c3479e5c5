package store

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reasons in Job.Skipped for letters that a job should send and could not take.
// The states of letters are further reasons.
const (
	takenBy = "taken by job " // the number of the other job follows
	changed = "changed meanwhile"
)

func isPassed(reason string) bool {
	return reason == changed || strings.HasPrefix(reason, takenBy) || State(reason).code() >= 0
}

// Passed returns how many letters the job should send and could not take.
// NotePassed counts them.
func (j Job) Passed() (n int64) {
	for reason, letters := range j.Skipped {
		if isPassed(reason) {
			n += letters
		}
	}
	return n
}

// NotePassed counts letters as skipped that a job should send and could not
// take. The filter of the job selects them, and they could be sent at the time
// of the plan. Since then another job took them, an operator discarded them, or
// a receipt changed their state. The reason in Job.Skipped names the other job,
// or the state.
//
// NotePassed counts at most missing letters. If the job has looked at all
// letters, it counts exactly missing: letters without a known reason are
// "changed meanwhile". It replaces its earlier counts.
func (s *Store) NotePassed(ctx context.Context, l Lease, planned time.Time, missing int64) error {
	return s.write(ctx, func(tx conn) error {
		j, err := tx.held(ctx, l)
		if err != nil {
			return err
		}
		byReason := map[string]int64{}
		if missing > 0 {
			if byReason, err = tx.passed(ctx, j, planned); err != nil {
				return err
			}
		}
		for reason := range j.Skipped {
			if !isPassed(reason) {
				continue
			}
			if _, err := tx.Exec(ctx, "delete from skips where job = ? and reason = ?", j.ID, reason); err != nil {
				return err
			}
		}
		if j.Exhausted {
			byReason[changed] = missing // the loop subtracts letters with a known reason
		}
		var rows [][]any
		for _, reason := range reasons(byReason) {
			if n := min(byReason[reason], missing); n > 0 {
				missing -= n
				rows = append(rows, []any{j.ID, reason, n})
			}
		}
		return tx.Insert(ctx, "skips", []string{"job", "reason", "letters"}, rows)
	})
}

// reasons returns the reasons in order; changed, the least exact one, is last.
func reasons(byReason map[string]int64) []string {
	list := slices.DeleteFunc(slices.Sorted(maps.Keys(byReason)), func(reason string) bool { return reason == changed })
	return append(list, changed)
}

// passed counts letters by reason. They could be sent at the time of the plan.
// Since then other jobs have taken them, or they have ended.
func (c conn) passed(ctx context.Context, j Job, planned time.Time) (map[string]int64, error) {
	f := j.Filter
	before := intersection(f.States, sendable())
	f.States = nil
	of := f.ofRow()
	of.and("coalesce(w.job, 0) <> ? and l.changed_at >= ?", j.ID, planned)
	of.and(`l.id in (
		select id from letters where wave > 0 and changed_at >= ? and wave in (select o.id from waves o join jobs p on p.id = o.job where p.id <> ? and (p.ended_at = 0 or p.ended_at >= ?))
		union select id from letters where state in (?) and changed_at >= ?)`,
		planned, j.ID, planned, []State{StateConfirmed, StateReturned, StateDiscarded}, planned)
	of.and("(select h.was from changes h where h.letter = l.id and h.at >= ? order by h.n limit 1) in (?)", planned, before)
	of.and("(l.state not in (?) or (l.at, l.id) <= (?, ?))", sendable(), j.queuedTo.at, j.queuedTo.id)
	query := `select l.id, l.state, case when (select count(*) from changes h where h.letter = l.id and h.at >= ? and h.state = ?) > 0 then coalesce(w.job, 0) else 0 end
		from letters l left join waves w on w.id = l.wave where ` + of.String()
	reasonOf := map[int64]string{}
	var list ids
	err := c.Each(ctx, query, append([]any{planned, StateQueued}, of.args...), func(scan func(...any) error) error {
		var id, by int64
		var state State
		err := scan(&id, intoState(&state), &by)
		list, reasonOf[id] = append(list, id), string(state)
		if by != 0 {
			reasonOf[id] = takenBy + strconv.FormatInt(by, 10)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	byReason := map[string]int64{}
	for part := range slices.Chunk(list, stepLetters) {
		matches := map[int64]bool{}
		if f.readsContent() {
			if matches, err = c.matches(ctx, f, part); err != nil {
				return nil, err
			}
		}
		for _, id := range part {
			if matches[id] || !f.readsContent() {
				byReason[reasonOf[id]]++
			}
		}
	}
	return byReason, nil
}
