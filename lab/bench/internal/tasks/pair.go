package tasks

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/service"
)

const (
	callers = 32  // who store tasks at the same time
	step    = 100 // tasks that are claimed at once
)

// Pair is a store of tasks, and beside it the tables of a program that is written by
// hand and promises the same of a crash.
type Pair struct {
	store *service.Store
	db    *sql.DB
	lock  string // of the rows that are claimed
	made  int    // tasks so far
}

// OpenPair opens a store, and the tables beside it: in the same database of Postgres,
// or in another file of SQLite.
func OpenPair(ctx context.Context, url string) (*Pair, error) {
	s, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	p := &Pair{store: s}
	driver, connections := "sqlite", 1 // more would wait for each other
	types := strings.NewReplacer("NUMBER", "integer primary key autoincrement", "BYTES", "blob")
	beside := "file:" + url + ".raw?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)"
	if strings.HasPrefix(url, "postgres") {
		driver, connections, beside, p.lock = "pgx", callers, url, "for update skip locked"
		types = strings.NewReplacer("NUMBER", "bigserial primary key", "BYTES", "bytea")
	}
	if p.db, err = sql.Open(driver, beside); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	p.db.SetMaxOpenConns(connections)
	p.db.SetMaxIdleConns(connections)
	if _, err = p.db.ExecContext(ctx, types.Replace(`create table calls (id NUMBER, key text not null unique, target text not null, headers text not null,
		body BYTES, status int not null default 0, due bigint not null);
		create index calls_due on calls (due) where status = 0;
		create table call_log (call bigint not null, at bigint not null, response int not null, error text not null)`)); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close closes both.
func (p *Pair) Close() error { return errors.Join(p.store.Close(), p.db.Close()) }

// Post is how many tasks a second callers store by the API of a service.
func (p *Pair) Post(ctx context.Context, n int) (rate float64, err error) {
	s, err := serve(ctx, p.store)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	first := p.next(n)
	return perSecond(n, func() error {
		return atOnce(ctx, callers, n, func(ctx context.Context, i int) error {
			return s.post(ctx, request{Key: key(first + i), Target: target, Headers: map[string]string{"X-Order": "7"}, At: time.Now().Add(time.Hour).UnixMilli()})
		})
	})
}

// Insert is how many rows of the same content a second as many callers insert.
func (p *Pair) Insert(ctx context.Context, n int) (rate float64, err error) {
	first := p.next(n)
	return perSecond(n, func() error {
		return atOnce(ctx, callers, n, func(ctx context.Context, i int) error {
			_, err := p.db.ExecContext(ctx, "insert into calls (key, target, headers, body, due) values ($1, $2, $3, $4, $5)",
				key(first+i), target, `{"X-Order":"7"}`, []byte(body), time.Now().UnixMilli())
			return err
		})
	})
}

func (p *Pair) next(n int) (first int) {
	first = p.made
	p.made += n
	return first
}

func perSecond(n int, f func() error) (float64, error) {
	began := time.Now()
	err := f()
	return float64(n) / time.Since(began).Seconds(), err
}

// Settle is how many tasks a second the store claims, and stores the end of. There
// are a multiple of 100.
func (p *Pair) Settle(ctx context.Context, n int) (rate float64, err error) {
	rows, err := fill(ctx, p.store, p.next(n), n, time.Now().Add(-time.Hour))
	if err != nil {
		return 0, err
	}
	slices.Sort(rows) // as they lie, which the loop takes them in, too
	return perSecond(n, func() error {
		for ; len(rows) > 0 && err == nil; rows = rows[step:] {
			err = p.settle(ctx, rows[:step])
		}
		return err
	})
}

func (p *Pair) settle(ctx context.Context, rows []int64) error {
	now := time.Now()
	claimed, err := p.store.Claim(ctx, rows, now, 0)
	if err := few("claimed", len(claimed), step, err); err != nil {
		return err
	}
	outcomes := make([]service.Outcome, len(claimed))
	for i, t := range claimed {
		t.Status, t.AttemptNumber, t.LastStatus, t.UpdatedAt = service.Succeeded, 1, 200, now
		outcomes[i] = service.Outcome{Task: t, Attempt: &service.Attempt{StartedAt: now, Duration: time.Millisecond, ResponseStatus: 200}}
	}
	return p.store.Settle(ctx, outcomes)
}

// Mark is how many calls a second a loop claims, marks as done and logs, in two
// transactions for as many as the store claims at once.
func (p *Pair) Mark(ctx context.Context, n int) (rate float64, err error) {
	if _, err := p.Insert(ctx, n); err != nil {
		return 0, err
	}
	return perSecond(n, func() error {
		for done := 0; done < n && err == nil; done += step {
			err = p.mark(ctx)
		}
		return err
	})
}

func (p *Pair) mark(ctx context.Context) error {
	ids, err := p.claim(ctx)
	if err := few("claimed", len(ids), step, err); err != nil {
		return err
	}
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after Commit
	for _, id := range ids {
		_, e1 := tx.ExecContext(ctx, "update calls set status = 2 where id = $1", id)
		_, e2 := tx.ExecContext(ctx, "insert into call_log (call, at, response, error) values ($1, $2, 200, '')", id, time.Now().UnixMilli())
		if err := errors.Join(e1, e2); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (p *Pair) claim(ctx context.Context) (ids []int64, err error) {
	rows, err := p.db.QueryContext(ctx, "update calls set status = 1 where id in (select id from calls where status = 0 and due <= $1 order by due limit "+
		strconv.Itoa(step)+" "+p.lock+") returning id, target, headers, body", time.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var target, headers string
		var body []byte
		if err := rows.Scan(&id, &target, &headers, &body); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
