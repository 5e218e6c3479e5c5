package serve_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/store"
)

// TestStoreIsFull fills the disk of the store, which can still be read.
func TestStoreIsFull(t *testing.T) {
	dir := breaktest.SmallDisk(t, "4m")
	if dir == "" {
		t.Skip("only root may mount a small disk")
	}
	inWorld(t, func(w *world) {
		w.must(w.store.Close())
		full, err := store.Open(w.Context(), filepath.Join(dir, "letters.db"))
		w.must(err)
		w.store, w.server.Store = full, full
		w.wants("redrive_store_up", "1")
		free := breaktest.Fill(dir)
		var letters []store.Collected
		for n := range 1000 {
			e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprint(n), Topic: "orders"}, Reason: "poison", DeadAt: time.Now()}
			letters = append(letters, store.Collected{Broker: "shop", Source: "orders-dead", Format: "redrive", Raw: e.Encode(0), Entry: e})
		}
		if _, err := full.Collect(w.Context(), time.Now(), letters); !errors.Is(err, store.ErrFull) {
			w.Errorf("letters on a full disk: %v", err)
		}
		time.Sleep(time.Minute)
		w.wants("redrive_store_up", "0")
		w.wants(`redrive_jobs{state="running"}`, "0")
		w.must(free())
		time.Sleep(time.Minute)
		w.wants("redrive_store_up", "1")
	})
}
