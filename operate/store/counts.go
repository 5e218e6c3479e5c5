package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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

// deltas are what a transaction changes about the counters of rows.
type deltas map[counted]*delta

type counted struct {
	table string
	row   int64
}

type delta struct {
	letters [9]int64 // by the code of the state
	bytes   int64
}

// add notes that n letters more are in a state. A wave of 0 is none.
func (d deltas) add(topic, cluster, wave int64, s State, n, bytes int64) {
	for _, at := range []counted{{"topics", topic}, {"clusters", cluster}, {"waves", wave}} {
		if at.row == 0 {
			continue
		}
		if d[at] == nil {
			d[at] = &delta{}
		}
		d[at].letters[s.code()] += n
		d[at].bytes += bytes
	}
}

// count brings the counters up to date.
func (c conn) count(ctx context.Context, d deltas) error {
	set := "bytes = bytes + v.column2"
	for i, s := range States() {
		set += fmt.Sprintf(", %[1]s = %[1]s + v.column%[2]d", s, 3+i)
	}
	rows := map[string][][]any{}
	for at, delta := range d {
		row := []any{at.row, delta.bytes}
		for _, n := range delta.letters {
			row = append(row, n)
		}
		rows[at.table] = append(rows[at.table], row)
	}
	for _, table := range []string{"topics", "clusters", "waves"} {
		slices.SortFunc(rows[table], func(a, b []any) int { return cmp.Compare(a[0].(int64), b[0].(int64)) })
		if table == "waves" { // which count no bytes
			_, set, _ = strings.Cut(set, ", ")
		}
		if err := c.Update(ctx, "update "+table+" set "+set+" from (values ROWS) as v where id = v.column1", rows[table]); err != nil {
			return err
		}
	}
	return nil
}
