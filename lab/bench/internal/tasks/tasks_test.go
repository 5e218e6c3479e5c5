package tasks

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/service"
)

func TestMain(m *testing.M) {
	code := m.Run()
	postgrestest.Stop()
	os.Exit(code)
}

// TestPair does all of the work, on both sides.
func TestPair(t *testing.T) {
	for _, database := range []string{"sqlite", "postgres"} {
		t.Run(database, func(t *testing.T) {
			url := filepath.Join(t.TempDir(), "tasks.db")
			if database == "postgres" {
				url = postgrestest.Schema(t, postgrestest.URL(t))
			}
			p, err := OpenPair(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			const n = 200
			for range 2 {
				posted, e1 := p.Post(t.Context(), n)
				inserted, e2 := p.Insert(t.Context(), n)
				settled, e3 := p.Settle(t.Context(), n)
				marked, e4 := p.Mark(t.Context(), n)
				if e1 != nil || e2 != nil || e3 != nil || e4 != nil || min(posted, inserted, settled, marked) <= 0 {
					t.Fatalf("%g posted, %v; %g inserted, %v; %g settled, %v; %g marked, %v", posted, e1, inserted, e2, settled, e3, marked, e4)
				}
			}
			var calls, done, logged int
			if err := p.db.QueryRow("select count(*), sum(status) / 2, (select count(*) from call_log) from calls").Scan(&calls, &done, &logged); err != nil {
				t.Fatal(err)
			}
			stats, err := p.store.Stats(t.Context())
			if err != nil || len(stats.Policies) != 1 {
				t.Fatalf("%+v, %v", stats, err)
			}
			got := stats.Policies[0]
			if calls != 4*n || done != 2*n || logged != 2*n || got.Pending != 2*n || got.Succeeded != 2*n {
				t.Errorf("%d calls, %d done, %d in the log; tasks %+v", calls, done, logged, got)
			}
		})
	}
}

// TestLateness has each task called, none early.
func TestLateness(t *testing.T) {
	late, err := Lateness(t.Context(), filepath.Join(t.TempDir(), "tasks.db"), 50, time.Millisecond)
	if err != nil || len(late) != 50 {
		t.Fatalf("%d calls, %v", len(late), err)
	}
	for _, d := range late {
		if d < 0 {
			t.Errorf("a call came %v early", -d)
		}
	}
}

// TestWheel goes round more than once.
func TestWheel(t *testing.T) {
	w, err := NewWheel(t.Context(), service.NewHeap(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if median, err := w.Turn(t.Context(), 40); err != nil || median <= 0 {
		t.Errorf("Turn = %v, %v", median, err)
	}
}

func TestRebuild(t *testing.T) {
	heap := service.NewHeap()
	took, err := Rebuild(t.Context(), filepath.Join(t.TempDir(), "tasks.db"), heap, 1500)
	if err != nil || took <= 0 {
		t.Fatalf("Rebuild = %v, %v", took, err)
	}
	due, _, err := heap.Take(t.Context(), time.Now().Add(2*time.Hour), 2000)
	if err != nil || len(due) != 1500 {
		t.Errorf("%d tasks are in the schedule, %v", len(due), err)
	}
}
