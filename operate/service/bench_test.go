package service

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/postgrestest"
)

// onDisk runs a benchmark on databases that are durable, with the store and a table
// of a hand-written program.
func onDisk(b *testing.B, f func(b *testing.B, s *Store, raw *sql.DB)) {
	run := func(b *testing.B, url, beside string) {
		s, db := openStore(b, url), rawDB(b, beside)
		db.SetMaxOpenConns(8)
		text := strings.NewReplacer("NUMBER", "integer primary key autoincrement", "BYTES", "blob")
		if s.db.Postgres() {
			text = strings.NewReplacer("NUMBER", "bigserial primary key", "BYTES", "bytea")
		}
		if _, err := db.Exec(text.Replace(`create table calls (id NUMBER, key text not null unique, target text not null, headers text not null, body BYTES,
			status int not null default 0, due bigint not null);
			create index calls_due on calls (due) where status = 0;
			create table call_log (call bigint not null, at bigint not null, response int not null, error text not null)`)); err != nil {
			b.Fatal(err)
		}
		f(b, s, db)
	}
	b.Run("sqlite", func(b *testing.B) {
		dir := b.TempDir()
		run(b, filepath.Join(dir, "tasks.db"), "file:"+filepath.Join(dir, "raw.db")+"?_txlock=immediate&_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	})
	b.Run("postgres", func(b *testing.B) {
		url := postgrestest.New(b).URL
		run(b, url, url)
	})
}

// site is a placeholder of the statement's database.
func site(s *Store, n int) string {
	if s.db.Postgres() {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

const insertCall = "insert into calls (key, target, headers, body, due) values (%s, %s, %s, %s, %s)"

func bareInsert(s *Store) string {
	return fmt.Sprintf(insertCall, site(s, 1), site(s, 2), site(s, 3), site(s, 4), site(s, 5))
}

// BenchmarkCreate stores tasks of 1 KiB, 32 callers at a time, beside a bare insert of
// the same bytes, each with its commit.
func BenchmarkCreate(b *testing.B) {
	onDisk(b, func(b *testing.B, s *Store, raw *sql.DB) {
		var n atomic.Int64
		body := []byte(strings.Repeat("x", 1024))
		atOnce := func(b *testing.B, f func(ctx context.Context, n int) error) {
			b.SetParallelism(16) // two processors and more: at least 32
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := f(b.Context(), int(n.Add(1))); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		}
		b.Run("store", func(b *testing.B) {
			atOnce(b, func(ctx context.Context, n int) error {
				given := task(n)
				given.Body = body
				_, created, err := s.Create(ctx, given)
				if err == nil && !created {
					err = fmt.Errorf("task %d is there", n)
				}
				return err
			})
		})
		b.Run("bare", func(b *testing.B) {
			insert := bareInsert(s)
			atOnce(b, func(ctx context.Context, n int) error {
				_, err := raw.ExecContext(ctx, insert, fmt.Sprint("acme/key-", n), "https://bank.example/transfers", `{"Content-Type":"application/json","X-Order":"7"}`, body, noon.UnixMilli())
				return err
			})
		})
	})
}

// BenchmarkClaimSettle claims tasks a hundred at a time, and stores what became of
// them, beside a hand-written loop that claims and marks as many.
func BenchmarkClaimSettle(b *testing.B) {
	const step = 100
	onDisk(b, func(b *testing.B, s *Store, raw *sql.DB) {
		first := 0
		b.Run("store", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				rows := fill(b, s, first, step)
				first += step
				b.StartTimer()
				claimed, err := s.Claim(b.Context(), rows, after(1e6*time.Hour), 0)
				if err != nil || len(claimed) != step {
					b.Fatalf("Claim = %d, %v", len(claimed), err)
				}
				outcomes := make([]Outcome, step)
				for i, c := range claimed {
					outcomes[i] = ended(c, Succeeded, 200)
				}
				if err := s.Settle(b.Context(), outcomes); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(step*float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
		b.Run("by hand", func(b *testing.B) {
			insert := bareInsert(s)
			for b.Loop() {
				b.StopTimer()
				inOne(b, raw, func(tx *sql.Tx) {
					for range step {
						first++
						mustExec(b, tx, insert, fmt.Sprint("acme/key-", first), "https://bank.example/transfers", "{}", task(first).Body, noon.UnixMilli())
					}
				})
				b.StartTimer()
				claimAndMark(b, s, raw, step)
			}
			b.ReportMetric(step*float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
	})
}

// fill stores tasks in one transaction, and returns their rows.
func fill(b *testing.B, s *Store, first, n int) (rows []int64) {
	var batch []*creation
	for i := range n {
		c, err := newCreation(task(first + i))
		if err != nil {
			b.Fatal(err)
		}
		batch = append(batch, c)
	}
	if err := s.create(b.Context(), batch); err != nil {
		b.Fatal(err)
	}
	for _, c := range batch {
		rows = append(rows, c.result.Row)
	}
	return rows
}

func inOne(b *testing.B, raw *sql.DB, f func(tx *sql.Tx)) {
	tx, err := raw.BeginTx(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	f(tx)
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
}

func mustExec(b *testing.B, tx *sql.Tx, statement string, args ...any) {
	if _, err := tx.ExecContext(b.Context(), statement, args...); err != nil {
		b.Fatal(err)
	}
}

// claimAndMark is what a program does without a store of tasks: it takes what is due,
// and marks each call and logs it, in two transactions for all.
func claimAndMark(b *testing.B, s *Store, raw *sql.DB, step int) {
	var list []int64
	locked := map[bool]string{true: " for update skip locked"}[s.db.Postgres()]
	inOne(b, raw, func(tx *sql.Tx) {
		rows, err := tx.QueryContext(b.Context(), fmt.Sprintf("update calls set status = 1 where id in (select id from calls where status = 0 and due <= %s order by due limit %d%s) returning id, target, headers, body",
			site(s, 1), step, locked), noon.UnixMilli())
		if err != nil {
			b.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			var target, headers string
			var body []byte
			if err := rows.Scan(&id, &target, &headers, &body); err != nil {
				b.Fatal(err)
			}
			list = append(list, id)
		}
		if err := rows.Err(); err != nil || len(list) != step {
			b.Fatalf("%d claimed, %v", len(list), err)
		}
	})
	inOne(b, raw, func(tx *sql.Tx) {
		for _, id := range list {
			mustExec(b, tx, "update calls set status = 2 where id = "+site(s, 1), id)
			mustExec(b, tx, fmt.Sprintf("insert into call_log (call, at, response, error) values (%s, %s, 200, '')", site(s, 1), site(s, 2)), id, noon.UnixMilli())
		}
	})
}
