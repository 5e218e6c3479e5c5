package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keep stores an event; the caller holds the lock. What a process has written
// to a file outlives it, however it ends, since the kernel has it then.
func (l *ledger) keep(e event) {
	if l.file == nil {
		l.events = append(l.events, e)
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write the ledger: %v", err)) // without one the run proves nothing
	}
}

// newJournal is the ledger of the worker process with this number. Its times
// count from start by the clock that all processes share.
func newJournal(file *os.File, start time.Time, number int, count func(id string) int) *ledger {
	const deliveries = 1_000_000_000 // more than any worker gets
	l := newLedger(nil)
	l.start, l.file, l.count = start.Round(0), file, count
	l.deliveries = number * deliveries
	return l
}

// readJournals reads what all worker processes have written.
func readJournals(dir string) ([]event, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var events []event
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(data) {
			if line[len(line)-1] != '\n' {
				break // the process died in the middle of it, so that nothing followed
			}
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			events = append(events, e)
		}
	}
	return events, nil
}

// merge puts the events of all processes in order. A process writes until it
// is dead, which is a moment after it was killed.
func merge(events []event) []event {
	last := map[int]time.Duration{}
	for _, e := range events {
		if e.Kind != crashed && e.Kind != down {
			last[e.Worker] = max(last[e.Worker], e.At)
		}
	}
	for i, e := range events {
		if e.Kind == crashed || e.Kind == down {
			events[i].At = max(cmp.Or(e.Until, e.At), last[e.Worker])
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(rank(a), rank(b)))
	})
	return events
}

// rank orders events of one moment: the end of a process comes last.
func rank(e event) int {
	switch e.Kind {
	case crashed:
		return 1
	case down:
		return 2
	}
	return 0
}

// written is how much all worker processes have written so far.
func written(dir string) (size int64) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			size += info.Size()
		}
	}
	return size
}
