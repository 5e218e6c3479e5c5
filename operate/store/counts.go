package store

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// counters are the columns of the counters, in the order of the states.
func counters(prefix string) string {
	list := make([]string, len(States()))
	for i, s := range States() {
		list[i] = prefix + string(s)
	}
	return strings.Join(list, ", ")
}

// openSum is the number of open letters. An index has it.
func openSum(prefix string) string {
	var list []string
	for _, s := range States() {
		if s.isOpen() {
			list = append(list, prefix+string(s))
		}
	}
	return strings.Join(list, " + ")
}

// deltas are what a transaction changes about the counters, by the number of a row.
type deltas struct {
	topics, clusters, waves map[int64]*delta
}

type delta struct {
	letters [9]int64 // by the code of the state
	bytes   int64
	failed  int64
}

func newDeltas() deltas {
	return deltas{map[int64]*delta{}, map[int64]*delta{}, map[int64]*delta{}}
}

// add notes that n letters more are in a state. A wave of 0 is none.
func (d deltas) add(topic, cluster, wave int64, s State, n, bytes int64) {
	for _, at := range []struct {
		of map[int64]*delta
		id int64
	}{{d.topics, topic}, {d.clusters, cluster}, {d.waves, wave}} {
		if at.id == 0 {
			continue
		}
		if at.of[at.id] == nil {
			at.of[at.id] = &delta{}
		}
		at.of[at.id].letters[s.code()] += n
		at.of[at.id].bytes += bytes
	}
}

// count brings the counters up to date.
func (c conn) count(ctx context.Context, d deltas) error {
	bytes := func(d *delta) int64 { return d.bytes }
	if err := c.countRows(ctx, "topics", "bytes", d.topics, bytes); err != nil {
		return err
	}
	if err := c.countRows(ctx, "clusters", "bytes", d.clusters, bytes); err != nil {
		return err
	}
	return c.countRows(ctx, "waves", "failed", d.waves, func(d *delta) int64 { return d.failed })
}

func (c conn) countRows(ctx context.Context, table, extra string, changed map[int64]*delta, value func(*delta) int64) error {
	var rows [][]any
	for _, id := range slices.Sorted(maps.Keys(changed)) {
		d := changed[id]
		row := []any{id, value(d)}
		for _, n := range d.letters {
			row = append(row, n)
		}
		rows = append(rows, row)
	}
	set := []string{extra + " = " + extra + " + v.column2"}
	for i, s := range States() {
		name := string(s)
		set = append(set, name+" = "+name+" + v.column"+strconv.Itoa(3+i))
	}
	return c.Update(ctx, "update "+table+" set "+strings.Join(set, ", ")+" from (values ROWS) as v where id = v.column1", rows)
}
