package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// jobRow is a job that sends letters back.
type jobRow struct {
	// ID is its number.
	ID int64 `json:"id"`

	// State is `running`, `paused`, `done` or `cancelled`.
	State string `json:"state"`

	// Idle says that the job is running, but no process works on it.
	Idle bool `json:"idle"`

	// Note is why it is in this state.
	Note string `json:"note"`

	// Letters is how many it was to send when it was created.
	Letters int64 `json:"letters"`

	// Moved is how many a broker has confirmed.
	Moved int64 `json:"moved"`

	// Confirmed is how many of them were handled, as receipts say.
	Confirmed int64 `json:"confirmed"`

	// Returned is how many of them are dead again.
	Returned int64 `json:"returned"`

	// Waiting is how many of them were not heard of yet.
	Waiting int64 `json:"waiting"`

	// Unknown is how many of them were not heard of in time.
	Unknown int64 `json:"unknown"`

	// Failed is how many failed at first, whatever became of them then.
	Failed int64 `json:"failed"`

	// Refused is how many the broker refused.
	Refused int64 `json:"refused"`

	// Skipped is how many were not sent, by reason. Some reasons are about
	// letters that changed after the job was planned: `taken by job` and the
	// number of the other job, `discarded`, `confirmed`, `returned`, or
	// `changed meanwhile` for other changes.
	Skipped map[string]int64 `json:"skipped"`

	passed int64 // letters in Skipped that changed after the job was planned

	// Left is how many are still to be sent.
	Left int64 `json:"left"`

	// Wave is the number of the wave that is under way, from 1.
	Wave int `json:"wave"`

	// Rate is the most letters a second.
	Rate float64 `json:"rate"`

	// Who is who created it.
	Who string `json:"who"`

	// Because is why.
	Because string `json:"because"`

	// Command is the command that created it.
	Command string `json:"command"`

	// Owner is the process that works on the job. If that process died, it
	// stays here until another one takes the job over. Empty if there is none.
	Owner string `json:"owner"`

	// OwnedUntil is when that process loses the job, unless it renews its lease.
	OwnedUntil instant `json:"owned_until"`

	// Created is when it was created.
	Created instant `json:"created"`

	// Changed is when its state changed last.
	Changed instant `json:"changed"`

	// Ended is when it was done or cancelled.
	Ended instant `json:"ended"`
}

func rowOfJob(j store.Job) jobRow {
	t := j.Tally
	r := jobRow{
		ID: j.ID, State: string(j.State), Note: j.Note, Wave: j.Wave, Owner: j.Owner, OwnedUntil: instant{j.OwnedUntil},
		Idle:  j.State == store.JobRunning && !j.IsHeld(time.Now()),
		Moved: t.Sent + t.Confirmed + t.Unknown + t.Returned, Confirmed: t.Confirmed, Returned: t.Returned, Waiting: t.Sent, Unknown: t.Unknown,
		Failed: t.Failed, Refused: t.Collected, Skipped: map[string]int64{}, passed: j.Passed(),
		Who: j.Actor.Who, Because: j.Actor.Reason, Command: j.Actor.Command,
		Created: instant{j.CreatedAt}, Changed: instant{j.ChangedAt}, Ended: instant{j.EndedAt},
	}
	maps.Copy(r.Skipped, j.Skipped)
	if spec, err := job.SpecOf(j); err == nil {
		r.Letters, r.Rate = spec.Planned, spec.Rate
	}
	if r.Left = t.Queued + t.Sending; !j.Exhausted {
		r.Left = max(r.Left, r.Letters-r.Moved-r.Refused-r.passed)
	}
	return r
}

func (r jobRow) skipped() (n int64) {
	for _, letters := range r.Skipped {
		n += letters
	}
	return n
}

// over is how many letters nothing more is going to happen to.
func (r jobRow) over() int64 { return r.Moved - r.Waiting + r.Refused + r.passed }

// summary is what became of a job, in a sentence.
func (r jobRow) summary() string {
	parts := []string{fmt.Sprintf("%d of %d moved", r.Moved, r.Letters), fmt.Sprintf("%d confirmed", r.Confirmed)}
	add := func(n int64, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(r.Returned, "returned")
	add(r.Waiting, "not heard of yet")
	add(r.Unknown, "not heard of")
	add(r.Refused, "refused by the broker")
	for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
		add(r.Skipped[reason], "skipped ("+reason+")")
	}
	parts = append(parts, fmt.Sprintf("%d left", r.Left))
	return fmt.Sprintf("Job %d is %s: %s", r.ID, r.standing(), strings.Join(parts, ", "))
}

// idle is the word for a job that is running while no process works on it.
const idle = "idle"

// standing returns the state of a job for people: its state, or idle.
func (r jobRow) standing() string {
	if r.Idle {
		return idle
	}
	return r.State
}

// holder names the process that works on a running job, and the end of its
// lease.
func (r jobRow) holder() string {
	switch {
	case !r.Idle:
		return fmt.Sprintf("%s, which has it until %s, unless it renews its lease", r.Owner, term.ISO(r.OwnedUntil.Time))
	case r.Owner != "":
		return fmt.Sprintf("no process: %s had it until %s", r.Owner, term.ISO(r.OwnedUntil.Time))
	}
	return "no process"
}

var jobTable = table[jobRow]{"id created state letters moved confirmed returned left who", func(r jobRow) []any {
	return []any{r.ID, r.Created, r.standingCell(), r.Letters, r.Moved, r.Confirmed, r.Returned, r.Left, r.Who}
}}

func (r jobRow) standingCell() term.Cell {
	style := map[string]term.Style{string(store.JobRunning): term.Green, string(store.JobPaused): term.Yellow, idle: term.Yellow}
	return term.Cell{Text: r.standing(), Style: style[r.standing()], Whole: true}
}

// jobDoc is all that is known of a job.
type jobDoc struct {
	jobRow

	// Waves are its waves, in order.
	Waves []waveRow `json:"waves"`

	// Troubles are what became of letters that were not handled, the most first.
	Troubles []troubleRow `json:"troubles"`
}

// waveRow is a wave of a job.
type waveRow struct {
	// Wave is its number, from 1.
	Wave int `json:"wave"`

	// Since is when it began.
	Since instant `json:"since"`

	// Resumed says that it began when somebody resumed the job.
	Resumed bool `json:"resumed"`

	// Letters is how many letters it took.
	Letters int64 `json:"letters"`

	// Confirmed is how many of them were handled.
	Confirmed int64 `json:"confirmed"`

	// Returned is how many of them are dead again.
	Returned int64 `json:"returned"`

	// Failing is how many of them have failed and not ended, by the class of the
	// error.
	Failing map[string]int64 `json:"failing"`
}

// troubleRow is letters of a job that met the same fate.
type troubleRow struct {
	// Letters is how many there are.
	Letters int64 `json:"letters"`

	// State is that of the letters.
	State string `json:"state"`

	// Note is what the last change says about them.
	Note string `json:"note"`

	// Example is the number of one of them.
	Example int64 `json:"example"`

	// ErrorText is the error that it came back with, as far as it is here again.
	ErrorText string `json:"error_text"`
}

// mostExamined is how many letters are looked at for what went wrong with a job.
const mostExamined = 10_000

func docOfJob(ctx context.Context, s *store.Store, id int64) (doc jobDoc, err error) {
	j, err := s.Job(ctx, id)
	if err != nil {
		return doc, err
	}
	waves, err := s.Waves(ctx, id, 1)
	if err != nil {
		return doc, err
	}
	doc = jobDoc{jobRow: rowOfJob(j), Waves: []waveRow{}, Troubles: []troubleRow{}}
	for _, w := range waves {
		row := waveRow{Wave: w.N, Since: instant{w.Since}, Resumed: w.Resumed, Confirmed: w.Confirmed, Returned: w.Returned, Failing: map[string]int64{}}
		for _, state := range store.States() {
			if state != store.StateSkipped {
				row.Letters += w.Counts.Of(state)
			}
		}
		maps.Copy(row.Failing, w.Failing)
		doc.Waves = append(doc.Waves, row)
	}
	doc.Troubles, err = troublesOf(ctx, s, j)
	return doc, err
}

// troublesOf puts letters of a job together that went wrong alike.
func troublesOf(ctx context.Context, s *store.Store, j store.Job) ([]troubleRow, error) {
	rows := []troubleRow{}
	at := map[[2]string]int{}
	f, examined := j.Filter, 0
	f.States = []store.State{store.StateReturned, store.StateUnknown, store.StateSent, store.StateCollected}
	for l, err := range allLetters(ctx, s, f) {
		if err != nil {
			return nil, err
		}
		if examined++; examined > mostExamined {
			break
		}
		if l.Job != j.ID || l.Note == "" {
			continue
		}
		key := [2]string{l.State, l.Note}
		i, ok := at[key]
		if !ok {
			i = len(rows)
			at[key] = i
			rows = append(rows, troubleRow{State: key[0], Note: key[1], Example: l.ID})
			if next, err := s.Letter(ctx, l.Next); err == nil {
				rows[i].ErrorText = next.ErrorText
			}
		}
		rows[i].Letters++
	}
	slices.SortFunc(rows, func(a, b troubleRow) int { return int(b.Letters - a.Letters) })
	return rows, nil
}

// sheet is a job for people.
func (doc jobDoc) sheet() *term.Sheet {
	s := &term.Sheet{}
	s.Title(doc.summary())
	s.Pair("note", doc.Note)
	s.Pair("created", term.ISO(doc.Created.Time)+" by "+doc.Who)
	s.Pair("because", doc.Because)
	s.Pair("command", doc.Command)
	s.Pair("changed", term.ISO(doc.Changed.Time))
	s.Pair("rate", shortNumber(doc.Rate)+" letters a second")
	if doc.State == string(store.JobRunning) {
		s.Pair("worked on by", doc.holder())
	}
	s.Title("Waves")
	for _, w := range doc.Waves {
		s.Pair(number(int64(w.Wave)), w.text())
	}
	if len(doc.Troubles) > 0 {
		s.Title("What was not handled")
		for _, t := range doc.Troubles {
			s.Pair(number(t.Letters), t.text())
		}
	}
	return s
}

func (w waveRow) text() string {
	text := fmt.Sprintf("%s: %s, %d confirmed, %d returned", w.Since.UTC().Format(time.TimeOnly), count(w.Letters, "letter"), w.Confirmed, w.Returned)
	for _, class := range slices.Sorted(maps.Keys(w.Failing)) {
		text += fmt.Sprintf(", %d failing (%s)", w.Failing[class], class)
	}
	if w.Resumed {
		text += "; the job was resumed"
	}
	return text
}

func (t troubleRow) text() string {
	text := fmt.Sprintf("%s: %s, such as letter %d", t.State, t.Note, t.Example)
	if t.ErrorText != "" {
		text += ", which came back with: " + t.ErrorText
	}
	return text
}
